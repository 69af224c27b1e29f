"""What `headgate up` says of a node that is not ready yet; tests/controller/cli/test_up.py has what follows."""

from controller.cli.readiness_report import ReadinessReport


def test_a_start_that_takes_long_is_named_every_minute_with_its_reason() -> None:
    report = ReadinessReport("node", 0.0)
    lines = [report.line("starting", "broker failed: refused", at) for at in (0.0, 59.0, 60.0, 119.0, 120.0)]

    assert [line is None for line in lines] == [True, True, False, True, False]
    assert lines[-1] == "node: not ready for 2 min: broker failed: refused"
