"""Help and errors of the programs that `headgate` passes its arguments to."""

import json

import pytest

from headgate.settings.command_parser import CommandParser


@pytest.fixture
def parser() -> CommandParser:
    made = CommandParser("headgate drain job", "Count.", "--ledger s3://bucket/path", "--ledger file:///ledger --json")
    made.add_argument("--ledger", required=True)
    return made


def test_help_ends_with_examples(parser: CommandParser) -> None:
    wanted = (
        "Examples:\n  headgate drain job --ledger s3://bucket/path\n  headgate drain job --ledger file:///ledger --json"
    )
    assert parser.format_help().endswith(f"{wanted}\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: --ledger"),
        (["--ledger", "x", "--ful"], "unrecognized arguments: --ful"),
        (["--led", "x"], "the following arguments are required: --ledger"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], reason: str, parser: CommandParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)

    assert 2 == ended.value.code
    assert f"headgate: {reason}; see: headgate drain job --help\n" == capsys.readouterr().err


def test_with_json_wrong_usage_is_json(parser: CommandParser, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(["--json"])

    wanted = {"error": "the following arguments are required: --ledger; see: headgate drain job --help", "exit_code": 2}
    assert wanted == json.loads(capsys.readouterr().err)
