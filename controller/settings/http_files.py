"""Read the files that [http] names: certificates and tokens."""

from __future__ import annotations

from controller.settings.sections import HttpSettings
from headgate.tls import server_context
from metrics.http_access import HttpAccess
from metrics.http_tokens import read_tokens


def read_http_access(http: HttpSettings) -> HttpAccess:
    """Return what the files say now. Raises ConfigError if one is unusable."""
    tls = None
    if http.certificate_file is not None and http.key_file is not None:
        tls = server_context(
            "$.http.",
            certificate_file=http.certificate_file,
            key_file=http.key_file,
            client_ca_file=http.client_ca_file,
        )
    tokens = None if http.tokens_file is None else read_tokens(http.tokens_file, "$.http.tokens_file")
    return HttpAccess(tls=tls, tokens=tokens, open_metrics=http.open_metrics)
