"""Who may read what over HTTP."""

import base64
import hashlib

import pytest

from web.access import HttpAccess, Tokens

TOKEN = "a-token"
SECURED = HttpAccess(tokens=Tokens((("grafana", hashlib.sha256(TOKEN.encode()).digest()),)))


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "denial"),
    [
        (None, "no_token"),
        (f"Bearer {TOKEN}", None),
        (f"bearer  {TOKEN} ", None),
        (basic(f"any-name:{TOKEN}"), None),
        (basic(f":{TOKEN}"), None),
        (basic(TOKEN), "wrong_token"),
        (basic(f"{TOKEN}:"), "wrong_token"),
        (f"Bearer {TOKEN}x", "wrong_token"),
        (f"Bearer {TOKEN} {TOKEN}", "wrong_token"),
        ("Bearer", "wrong_token"),
        ("", "wrong_token"),
        (TOKEN, "wrong_token"),
        ("Basic ///", "wrong_token"),
        ("Basic " + base64.b64encode(b"a:\xff").decode(), "wrong_token"),
        (f"Digest {TOKEN}", "wrong_token"),
        ("Bearer \udcff", "wrong_token"),  # a byte that is no text
    ],
)
def test_a_token_is_sent_as_a_bearer_token_or_as_a_password(authorization: str | None, denial: str | None) -> None:
    assert SECURED.denial(authorization) == denial


def test_without_tokens_everything_is_permitted() -> None:
    assert [HttpAccess().denial(each) for each in (None, "Bearer x")] == [None, None]


@pytest.mark.parametrize("open_metrics", [False, True])
def test_probes_are_open_and_metrics_by_setting(open_metrics: bool) -> None:
    access = HttpAccess(tokens=Tokens(()), open_metrics=open_metrics)
    paths = ["/livez", "/readyz", "/metrics", "/", "/api/v1/cluster", "/live", "/static/page.js", "/livez/", "/nowhere"]

    assert [path for path in paths if access.is_open(path)] == ["/livez", "/readyz"] + ["/metrics"] * open_metrics
