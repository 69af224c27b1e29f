"""The faults of the catalogue, and the plan that follows from the options of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.__main__ import Options, command, make_plan
from chaos.cluster import SHARDS, TOPICS
from chaos.faults.catalogue import CATALOGUE, kinds, select, why_impossible
from headgate.errors import ConfigError
from headgate.model.hashing import shard_of

OPTIONS = Options(minutes=10, seed=1, names=(), fault_seconds=None, rest_seconds=10.0, rate=200, with_spark=True)


def options(**changes: object) -> Options:
    return Options(**{field: getattr(OPTIONS, field) for field in OPTIONS.__slots__} | changes)


def test_each_fault_has_a_name_a_sentence_and_a_duration() -> None:
    assert len(CATALOGUE) == sum(1 for name, fault in CATALOGUE.items() if fault.name == name)
    assert all(fault.summary.endswith(".") for fault in CATALOGUE.values())
    assert all(fault.continuing <= set(TOPICS) for fault in CATALOGUE.values())


def test_each_topic_has_a_shard_of_its_own() -> None:
    """The damage of one chunk must not concern another topic, and evidence is read by shard."""
    assert list(range(SHARDS)) == [shard_of(topic, SHARDS) for topic in TOPICS]


def test_ten_minutes_have_every_fault() -> None:
    made, reasons = make_plan(OPTIONS, has_shim=True)

    assert set(CATALOGUE) <= {fault.name for fault in made.faults}
    assert {} == reasons
    assert 600 == made.seconds


def test_a_short_run_and_a_machine_without_a_compiler_say_what_they_leave_out() -> None:
    made, reasons = make_plan(options(minutes=2, with_spark=False), has_shim=False)

    assert set(CATALOGUE) == {fault.name for fault in made.faults} | set(reasons)
    assert reasons["disk-full"] == "there is no C compiler (cc, gcc or clang)"
    assert reasons["spark-killed"] == "the run is without Spark"
    assert "the run is too short" in reasons.values()


def test_chosen_faults_keep_their_order_and_may_be_shorter() -> None:
    made, _ = make_plan(options(names=["broker-killed", "leader-killed"], fault_seconds=5.0), has_shim=True)

    assert [("broker-killed", 5.0), ("leader-killed", 5.0)] == [(fault.name, fault.seconds) for fault in made.faults]


def test_a_fault_that_takes_as_long_as_it_takes_gets_no_duration() -> None:
    assert [0.0] == [kind.seconds for kind in kinds(select(["rolling-upgrade"]), 5.0)]
    assert why_impossible(CATALOGUE["rolling-upgrade"], has_shim=False, has_spark=False) is None


def test_an_unknown_fault_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"no fault is called fire; choose from: leader-killed, "):
        select(["leader-killed", "fire"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--faults", "fire"], "no fault is called fire", id="unknown fault"),
        pytest.param(["--minutes", "0"], "--minutes", id="no time"),
        pytest.param(["--rate", "0"], "--rate", id="no load"),
        pytest.param(["--folder", "{used}"], "contains an earlier run", id="folder in use"),
    ],
)
def test_bad_input_ends_with_code_2_before_anything_starts(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    words = [word.replace("{used}", str(tmp_path)) for word in arguments]

    found = CliRunner().invoke(command(), words if "--folder" in words else [*words, "--folder", str(tmp_path / "new")])

    assert 2 == found.exit_code
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_the_list_names_every_fault() -> None:
    found = CliRunner().invoke(command(), ["--list"])

    assert 0 == found.exit_code
    assert list(CATALOGUE) == [line.split()[0] for line in found.stdout.splitlines()]
