"""The file of tokens."""

from pathlib import Path

import pytest

from headgate.errors import ConfigError
from tests.support.samples.secret_files import write_secret
from web.access import Tokens
from web.tokens import MAX_TOKENS, new_token, read_tokens, token_line


def test_each_line_is_a_token_of_its_holder(tmp_path: Path) -> None:
    """Two lines may name one holder, so that a token can be replaced without a gap."""
    tokens = {name: new_token() for name in ("grafana", "prometheus", "next")}
    lines = [
        "# made by headgate http token",
        token_line("grafana", tokens["grafana"]),
        "",
        token_line("prometheus", tokens["prometheus"]),
        token_line("prometheus", tokens["next"]),
    ]
    read = read_tokens(write_secret(tmp_path / "tokens", "\n".join(lines).encode()), "$.http.tokens_file")

    assert [read.holder(each) for each in tokens.values()] == ["grafana", "prometheus", "prometheus"]
    assert read.holder(new_token()) is None


@pytest.mark.parametrize("token", ["", " ", "\udcff".encode("utf-8", "surrogatepass").decode("latin-1"), "x" * 8000])
def test_no_other_text_is_a_token(token: str) -> None:
    assert Tokens(()).holder(token) is None


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        (b"prometheus hunter2", "line 1: write NAME sha256:HASH"),
        (b"\nhunter2\n", "line 2: write NAME"),
        (b"a sha256:" + b"0" * 63, "line 1: write NAME"),
        (b"a sha256:" + b"0" * 64 + b" hunter2", "line 1: write NAME"),
        (b"\xff\xfe", "line 1: write NAME"),
        (b"", "is empty"),
        (b"a sha256:" + b"0" * 64 + b"\n", None),
        ((b"a sha256:" + b"0" * 64 + b"\n") * (MAX_TOKENS + 1), "1001 tokens; 1000 are allowed"),
    ],
    ids=["a plain token", "no name", "short hash", "more text", "binary", "empty", "valid", "too many"],
)
def test_an_unusable_file_is_refused_without_quoting_it(tmp_path: Path, contents: bytes, problem: str | None) -> None:
    path = write_secret(tmp_path / "tokens", contents)
    if problem is None:
        assert read_tokens(path, "$.http.tokens_file").holder("x") is None
        return
    with pytest.raises(ConfigError, match=problem) as caught:
        read_tokens(path, "$.http.tokens_file")
    assert str(caught.value).startswith(f"$.http.tokens_file: {path}")
    assert "hunter2" not in str(caught.value)


def test_a_file_that_every_user_may_read_is_refused(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "tokens", token_line("a", "b").encode())
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="every user may access"):
        read_tokens(path, "$.http.tokens_file")


@pytest.mark.parametrize("name", ["", "a b", "-a", "a:b", "x" * 101, "a\n"])
def test_an_invalid_name_gets_no_line(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a name"):
        token_line(name, "token")


def test_no_representation_contains_hashes() -> None:
    assert "7465" not in repr(Tokens((("a", b"test"),)))
