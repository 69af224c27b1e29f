"""`headgate http token`."""

from pathlib import Path

from tests.headgate.cli.conftest import Invoke
from web.tokens import read_tokens


def test_each_token_is_printed_once_and_added_to_the_file(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    made = [invoke("http", "token", name, "--file", str(path)) for name in ("prometheus", "grafana", "prometheus")]
    tokens = [each.stdout.strip() for each in made]

    assert [each.exit_code for each in made] == [0, 0, 0]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [read_tokens(path, "x").holder(each) for each in tokens] == ["prometheus", "grafana", "prometheus"]
    assert not any(each in path.read_text() + "".join(one.stderr for one in made) for each in tokens)


def test_a_file_that_an_operator_wrote_keeps_its_lines_and_its_mode(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# tokens of the plant, no newline here")
    path.chmod(0o640)
    token = invoke("http", "token", "a", "--file", str(path)).stdout.strip()

    assert path.read_text().startswith("# tokens of the plant, no newline here\na sha256:")
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_tokens(path, "x").holder(token) == "a"


def test_an_unusable_file_or_name_is_one_line_and_changes_nothing(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("hunter2\n")
    path.chmod(0o600)
    for words, problem in (
        (("a", "--file", str(path)), f"headgate: --file: {path}, line 1: write NAME sha256:HASH"),
        (("a b", "--file", str(tmp_path / "other")), "headgate: 'a b' is not a name"),
        (("a", "--file", str(tmp_path / "nowhere" / "x")), f"headgate: {tmp_path / 'nowhere' / 'x'}: No such file"),
    ):
        result = invoke("http", "token", *words)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(problem)

    assert sorted(each.name for each in tmp_path.iterdir()) == ["tokens"]
    assert path.read_text() == "hunter2\n"
