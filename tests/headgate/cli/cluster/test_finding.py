"""How `headgate doctor` prints what it found."""

from __future__ import annotations

from headgate.cli.cluster.finding import finding_lines, has_problem, ok, problem, warning

FOUND = [
    ok("broker", "127.0.0.1:1883 answers in 3 ms"),
    warning("versions", "the client is 1.0, daemons are 1.1", "install one version"),
    problem("store", "s3://bucket/path cannot be listed, " * 3, "check the credentials, " * 4),
]


def test_each_finding_has_its_level_and_its_remedy_below():
    lines = finding_lines(FOUND)

    assert lines[:3] == [
        "ok       broker: 127.0.0.1:1883 answers in 3 ms",
        "warning  versions: the client is 1.0, daemons are 1.1",
        "         → install one version",
    ]
    assert lines[-1] == "1 ok, 1 warning, 1 problem"
    assert all(len(line) <= 80 for line in lines), lines


def test_only_problems_are_problems():
    assert has_problem(FOUND)
    assert not has_problem(FOUND[:2])
