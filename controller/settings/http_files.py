"""Read the files that [http] names: certificates and tokens."""

from __future__ import annotations

import ssl

from controller.settings.sections import HttpSettings
from headgate.errors import ConfigError
from headgate.files.tls import client_context, server_context
from web.access import HttpAccess
from web.tokens import read_tokens


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


def read_peer_tls(http: HttpSettings) -> ssl.SSLContext:
    """Return the context of requests to other daemons. Raises ConfigError if a file is unusable.

    Where clients need a certificate, this daemon presents that of its own server.
    """
    own = {} if http.client_ca_file is None else {"certificate_file": http.certificate_file, "key_file": http.key_file}
    try:
        return client_context("$.http.", ca_file=http.peer_ca_file, **own)
    except ConfigError as error:
        raise ConfigError(str(error).replace("$.http.ca_file", "$.http.peer_ca_file", 1)) from None
