"""The options of drain/: durations, and addresses that are refused."""

import argparse
import signal
import subprocess
import sys

import pytest

from drain.command_line import run_command, seconds
from headgate.errors import StoreError

COMMAND = """
import asyncio
from drain.command_line import run_command

async def count():
    try:
        print("counting", flush=True)
        await asyncio.sleep(600)
    finally:
        print("stopped Spark", flush=True)

raise SystemExit(run_command(count()))
"""


def test_a_duration_is_a_number_of_seconds_up_to_a_year() -> None:
    assert [0.0, 2.5, 31_536_000.0] == [*map(seconds, ("0", "2.5", "31536000"))]
    for text in ("nan", "inf", "-1", "31536001", "soon"):
        with pytest.raises(argparse.ArgumentTypeError, match=text):
            seconds(text)


@pytest.mark.parametrize(
    ("as_json", "expected"),
    [(False, "headgate: no such store\n"), (True, '{"error": "no such store", "exit_code": 2}\n')],
)
def test_a_server_that_is_away_is_one_line(as_json: bool, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> int:
        raise StoreError("no such store")

    assert run_command(fail(), as_json=as_json) == 2
    assert capsys.readouterr().err == expected


def test_a_command_stops_spark_before_it_ends_by_a_signal() -> None:
    with subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout.readline() == "counting\n"
        command.send_signal(signal.SIGTERM)
        assert command.stdout.read() == "stopped Spark\n"
        assert command.wait(60) == 128 + signal.SIGTERM
