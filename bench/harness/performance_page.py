"""The page docs/performance.md, and README's part, from stored results. Pure."""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

BUCKET = "ingest_object_store"
NUMBERS = (
    ("Records of 100 bytes stored, one producer, one shard", "peers", "{headgate_100:,} a second"),
    ("Records of 1 KB stored, one producer, one shard", "peers", "{headgate_1000:,} a second"),
    ("Records of 100 bytes read back, one consumer", "peers", "{headgate_read:,} a second"),
    ("Send to acknowledgement, synced", "peers", "{headgate_ack_p50_ms:.1f} / {headgate_ack_p99_ms:.1f} ms"),
    ("Send to delivery", "peers", "{headgate_e2e_p50_ms:.1f} / {headgate_e2e_p99_ms:.1f} ms"),
    ("Send to acknowledgement, simulated S3", BUCKET, "{standard_p50_wait_ms:.0f} / {standard_p99_wait_ms:.0f} ms"),
    ("Send to delivery, simulated S3", BUCKET, "{standard_p50_delivery_ms:.0f} / {standard_p99_delivery_ms:.0f} ms"),
    ("Records of 1 KB stored, simulated S3", BUCKET, "{standard_mb_a_second:.0f} MB/s"),
    ("Last acknowledgement to the open child", "drain_release", "{median_ms:.0f} ms, 95 % in {p95_ms:.0f} ms"),
    ("No leader: one is killed, sessions time out after 2 s", "failover", "{sigkill_gap_ms:.0f} ms"),
    ("No leader: one hands over", "failover", "{sigterm_gap_ms:.0f} ms"),
)
"""What, benchmark, and its parts. Two times are the median and the 99th percentile."""
README_PART = re.compile(r"(<!-- measured: .*? -->\n).*?(<!-- measured: end -->)", re.DOTALL)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when the benchmarks ran."""

    processor: str
    cores: int
    memory_gb: int
    system: str
    python: str
    date: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one benchmark prints as JSON, with ``doc`` and ``seconds``, or ``error``."""

    name: str
    doc: str = ""
    error: str = ""
    """Why it has no value."""
    value: float = 0.0
    unit: str = ""
    goal: float = 1.0
    better: Literal["higher", "lower"] = "lower"
    goal_met: bool = False
    parts: Mapping[str, float | int | str] = {}
    seconds: int = 0
    """How long it took."""
    date: str = ""
    """When it was measured."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    benchmarks: list[Result]


def page(results: Results) -> str:
    rows = [
        f"| [{result.name}](#{result.name}) | {_value(result)} | {_goal(result)} | {_verdict(result)} |"
        for result in results.benchmarks
    ]
    sections = [line for result in results.benchmarks for line in _section(result)]
    return "\n".join(
        [
            "# Performance",
            "",
            "`make performance` measures every benchmark, and writes this page from the results.",
            "`python -m bench NAME --write docs/performance` measures one again.",
            "A benchmark is a ratio between headgate and something comparable, measured in turns in one process, so",
            "that other load on the machine disturbs both. A missed goal stays, and is shown as missed.",
            "",
            *_measured_on(results),
            "",
            *_numbers(results),
            "",
            "| benchmark | value | goal | |",
            "|---|---|---|---|",
            *rows,
            "",
            *sections,
        ]
    )


def _measured_on(results: Results) -> list[str]:
    """Return where and when was measured, or that nothing was."""
    if all(result.error for result in results.benchmarks):
        return ["No run is stored yet."]
    machine, total = results.machine, sum(result.seconds for result in results.benchmarks)
    return [
        f"Measured on {machine.date}, in {total / 60:.0f} min: {machine.processor}, {machine.cores} cores,",
        f"{machine.memory_gb} GB of memory, {machine.system}, Python {machine.python}.",
    ]


def readme(text: str, results: Results) -> str:
    """Return README with the newest values between its marks."""
    lines = "\n".join([*_measured_on(results), "", *_numbers(results), ""])
    return README_PART.sub(lambda part: f"{part[1]}{lines}\n{part[2]}", text)


def _numbers(results: Results) -> list[str]:
    """Return a table of absolute numbers. Ratios are fair on any machine, and say nothing about a machine's size."""
    parts = {result.name: result.parts for result in results.benchmarks if not result.error}
    rows = [f"| {what} | {text.format_map(parts[name])} |" for what, name, text in NUMBERS if name in parts]
    return ["| one machine, loopback, times: median / 99 % | |", "|---|---|", *rows] if rows else []


def _section(result: Result) -> list[str]:
    """Return the part about one benchmark: what it compares, its values and its command."""
    command = ['```bash no-run="takes minutes"', f"python -m bench {result.name}", "```", ""]
    head = [f"## {result.name}", "", *result.doc.strip().splitlines(), ""]
    if result.error:
        return [*head, f"Not measured: {result.error}", "", *command]
    parts = [f"{name} {_number(part)}" for name, part in result.parts.items() if not name.endswith("_goal")]
    return [
        *head,
        f"**{_value(result)}**, goal {_goal(result)}: {_verdict(result)}.",
        "",
        f"Measured on {result.date} in {_duration(result.seconds)}.",
        "",
        *([f"Parts: {', '.join(parts)}.", ""] if parts else []),
        *command,
    ]


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _value(result: Result) -> str:
    return "not measured" if result.error else f"{result.value:.3g} {result.unit}"


def _goal(result: Result) -> str:
    return "" if result.error else f"{'≤' if result.better == 'lower' else '≥'} {result.goal:g}"


def _verdict(result: Result) -> str:
    return "" if result.error else "met" if result.goal_met else "**missed**"


def _number(part: float | str) -> str:
    return f"{part:g}" if isinstance(part, float) else str(part)
