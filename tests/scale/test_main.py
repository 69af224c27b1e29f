"""The command: its exit codes, its one line and its report, on trials that were played before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scale.__main__ import STAGES, command
from scale.cluster import TrialOptions
from scale.report import Measured, Report
from scale.trial import Say, Stage


def run(*words: str, unfinished: str = "") -> Result:
    async def play(
        folder: Path, options: TrialOptions, report: Report, stages: Mapping[str, Stage], say: Say, minutes: float
    ) -> None:
        assert stages is STAGES
        assert (4, 12.0) == (options.processes, minutes)
        say("start: all shards led 1.5 s")
        report.measured.append(Measured("start", "all shards led", 1.5, "s"))
        report.unfinished = unfinished

    return CliRunner().invoke(command(play), words)


def test_a_finished_trial_ends_with_code_0_and_leaves_a_report(tmp_path: Path) -> None:
    found = run("--scale", "0.01", "--folder", str(tmp_path / "trial"))
    assert 0 == found.exit_code, found.stderr
    assert "start: all shards led 1.5 s" in found.stderr
    assert ["start", "all", "shards", "led", "1.5", "s"] in [line.split() for line in found.stdout.splitlines()]
    assert max(map(len, found.stdout.splitlines())) <= 80
    report = json.loads((tmp_path / "trial" / "report.json").read_text())
    assert {"start": {"all_shards_led_s": 1.5}} == report["stages"]
    assert {"shards": 2, "topics": 10}.items() <= report["sizes"].items()


def test_json_is_the_report_and_nothing_else(tmp_path: Path) -> None:
    found = run("--json", "--folder", str(tmp_path))
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(found.stdout)


def test_an_unfinished_trial_ends_with_code_1_and_says_where_it_stopped(tmp_path: Path) -> None:
    found = run("--folder", str(tmp_path), unfinished="start: daemon-1 ended on its own: out of memory")
    assert 1 == found.exit_code
    assert f"scale: start: daemon-1 ended on its own: out of memory; the folder of this trial is {tmp_path}" in (
        found.stderr.splitlines()
    )
    assert "1.5" in found.stdout, "it shows what it measured"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--daemons", "5", "--shards", "4"], "scale: --shards 4 is below --daemons 5"),
        (["--daemons", "1"], "1 is not in the range"),
        (["--scale", "0"], "0.0 is not in the range"),
    ],
    ids=["contradiction", "one daemon", "no scale"],
)
def test_bad_input_ends_with_code_2(words: list[str], text: str) -> None:
    found = run(*words)
    assert 2 == found.exit_code
    assert text in found.stderr


def test_a_folder_with_an_earlier_trial_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    found = run("--folder", str(tmp_path))
    assert 2 == found.exit_code
    assert f"scale: --folder {tmp_path}: it contains an earlier trial" in found.stderr
