"""Secrets come from files that only owner and group may read."""

import os
from pathlib import Path

import pytest

from headgate.errors import ConfigError
from headgate.files.named_file import read_secret
from tests.support.samples.secret_files import write_secret

SETTING = "$.broker.password_file"


def secret_file(folder: Path, contents: bytes, mode: int = 0o600) -> Path:
    path = write_secret(folder / "secret", contents)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o660], ids=oct)
@pytest.mark.parametrize("end", ["", "\n", "\r\n"], ids=["no end", "unix", "windows"])
def test_the_line_is_the_secret_without_its_end(tmp_path: Path, end: str, mode: int) -> None:
    assert " pä ss " == read_secret(secret_file(tmp_path, f" pä ss {end}".encode(), mode), SETTING)


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\r\n", "is empty"),
        (b"hush\nhush\n", "one line"),
        (b"hush\n\n", "one line"),
        (b"hush\0", "one line without control characters"),
        (b"hush\xff", "is not UTF-8 text"),
        (b"hush" * 1025, "more than 4096 bytes"),
    ],
    ids=["empty", "empty line", "empty windows line", "two lines", "empty second line", "nul", "binary", "long"],
)
def test_an_error_names_setting_and_file_and_nothing_of_the_contents(tmp_path: Path, contents: bytes, problem: str):
    path = secret_file(tmp_path, contents)
    with pytest.raises(ConfigError) as caught:
        read_secret(path, SETTING)
    assert str(caught.value).startswith(f"{SETTING}: ")
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o644, 0o777], ids=oct)
def test_a_file_that_other_users_may_access_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path, b"hush\n", mode)
    with pytest.raises(ConfigError, match=rf"every user may access {path} \(mode {mode:04o}\): .*chmod 640"):
        read_secret(path, SETTING)


def test_what_is_not_a_readable_file_is_refused_at_once(tmp_path: Path) -> None:
    """Opening a pipe would wait for its writer."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, problem in {
        "none": "cannot read .*none: No such file",
        "": "is not a file; name a file",
        "pipe": "is not a file",
        "null\0": "is not a path",
    }.items():
        with pytest.raises(ConfigError, match=rf"^\$\.broker\.password_file: .*{problem}"):
            read_secret(f"{tmp_path}/{name}", SETTING)
