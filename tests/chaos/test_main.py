"""The command: its exit codes, its one line, and what it leaves, on runs that were played before."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaos.__main__ import command
from chaos.judge import RunEvidence, SentRecord, TopicEvidence
from chaos.run import RunPlan, Say
from chaos.timeline import SECOND_NS, FaultWindow, Timeline
from demo.checks import StoredRecord
from headgate.errors import HeadgateError

CLEAN = TopicEvidence(
    "orders", 0, [SentRecord("k", 0, 0, SECOND_NS, "committed")], [StoredRecord(0, 0, "k", 0)], [], []
)
LOST = replace(CLEAN, stored=[])


def run(topic: TopicEvidence | HeadgateError, folder: Path, *options: str) -> Result:
    async def play(data: Path, plan: RunPlan, say: Say) -> tuple[RunEvidence, Timeline, list[str]]:
        (data / "daemon-1.log").touch()
        if isinstance(topic, HeadgateError):
            raise topic
        say("played")
        faults = [FaultWindow(fault.name, "It fails.", 0, SECOND_NS // 2) for fault in plan.faults]
        return RunEvidence([topic], faults), Timeline(0, 2 * SECOND_NS, {"orders": [(0, SECOND_NS)]}, []), []

    words = ["--folder", str(folder), "--seed", "3", "--faults", "leader-killed", *options]
    return CliRunner().invoke(command(play), words)


def test_a_clean_run_ends_with_code_0_and_leaves_a_report(tmp_path: Path) -> None:
    found = run(CLEAN, tmp_path)

    assert 0 == found.exit_code, found.stderr
    assert found.stderr.splitlines()[-1] == f"chaos: every invariant held; the report is {tmp_path}/report.md"
    assert "leader-killed" in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 80
    assert {"chart.svg", "report.json", "report.md", "run"} == {path.name for path in tmp_path.iterdir()}
    repeat = "`python -m chaos --seed 3 --rate 200 --faults leader-killed --rest-seconds 10`"
    assert repeat in (tmp_path / "report.md").read_text()


def test_a_violation_ends_with_code_1_and_is_named_in_the_last_line(tmp_path: Path) -> None:
    found = run(LOST, tmp_path, "--json")

    assert 1 == found.exit_code
    last = found.stderr.splitlines()[-1]
    assert last.startswith("chaos: lost: orders: k #0 was committed and is not in the ledger; the report is ")
    assert (False, {"lost": 1}) == (json.loads(found.stdout)["passed"], json.loads(found.stdout)["violation_counts"])
    assert json.loads(found.stdout) == json.loads((tmp_path / "report.json").read_text())


def test_a_cluster_that_cannot_start_ends_with_code_1_and_one_line_that_names_the_folder(tmp_path: Path) -> None:
    found = run(HeadgateError("mosquitto is not installed"), tmp_path)

    assert 1 == found.exit_code
    assert found.stderr.splitlines()[-1] == f"chaos: mosquitto is not installed; the folder of this run is {tmp_path}"


@pytest.mark.parametrize(("topic", "kept"), [(CLEAN, False), (LOST, True)], ids=["clean", "violation"])
def test_ledger_and_logs_in_a_temporary_folder_are_kept_only_for_a_violation(topic: TopicEvidence, kept: bool) -> None:
    folders: list[Path] = []

    async def play(data: Path, *_: object) -> tuple[RunEvidence, Timeline, list[str]]:
        folders.append(data.parent)
        return RunEvidence([topic]), Timeline(0, SECOND_NS, {"orders": []}, []), []

    CliRunner().invoke(command(play), ["--faults", "leader-killed"])

    [folder] = folders
    assert kept == (folder / "run").exists()
    assert (folder / "report.md").exists()
    shutil.rmtree(folder)
