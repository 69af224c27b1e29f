"""What `headgate doctor` says of what it measured, and how it is printed. Pure.

A finding is ``ok``, a ``warning`` (it works, but not as it should) or a ``problem``. Every finding that is not ok has a
remedy in one line.

1. A clock that differs from a daemon's by `CLOCK_WARNING_SECONDS` makes ages and times of records misleading; by
   `CLOCK_PROBLEM_SECONDS` retention and certificates go wrong. What a daemon says may be a second old, and travels.
2. Other versions than the client's work as long as the protocol is the same, so they are warnings.
3. A daemon that is degraded works, so that is a warning; one that is not ready or unreachable is a problem.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final, Literal

from headgate.model.text import listed, plural
from headgate.model.time_text import duration
from headgate.transport.port import LARGEST_PACKET_BYTES, BrokerProperties
from headgate.views.cluster import ClusterInfo, DaemonInfo, FeatureLevel

Level = Literal["ok", "warning", "problem"]
WIDTH: Final = 80
_INDENT: Final = " " * 9
CLOCK_WARNING_SECONDS: Final = 5.0
CLOCK_PROBLEM_SECONDS: Final = 60.0
CLOCK_STEP_SECONDS: Final = 0.5
"""While the checks run, wall clock and monotonic clock advance alike; time synchronization slews by less."""
CERTIFICATE_WARNING_DAYS: Final = 14
"""As the alert."""
_DAY_SECONDS: Final = 86_400
SLOW_SECONDS: Final = 1.0
"""An answer of broker or store that takes longer is slow: both usually take milliseconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    text: str
    remedy: str = ""
    """What to do; empty if it is ok."""


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "warning", text, remedy)


def problem(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "problem", text, remedy)


def has_problem(findings: Iterable[Finding]) -> bool:
    return any(each.level == "problem" for each in findings)


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    lines: list[str] = []
    for each in findings:
        lines += wrapped(f"{each.level:<9}{each.check}: {each.text}", _INDENT)
        if each.remedy:
            lines += wrapped(f"{_INDENT}→ {each.remedy}", f"{_INDENT}  ")
    counts = {level: sum(each.level == level for each in findings) for level in ("ok", "warning", "problem")}
    summary = f"{counts['ok']} ok, {plural(counts['warning'], 'warning')}, {plural(counts['problem'], 'problem')}"
    return [*lines, "", summary]


def wrapped(text: str, indent: str) -> list[str]:
    """Return ``text`` in lines of `WIDTH`. An address is not broken."""
    return wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def judge_broker(name: str, properties: BrokerProperties | None) -> list[Finding]:
    """Return what the broker at ``name`` says of itself when a client connects with MQTT 5; None: it refuses that."""
    if properties is None:
        return [
            warning(
                "broker",
                f"{name} speaks no MQTT 5: a user can displace messages of others with many retained messages, "
                "devices get no confirmations, and the broker does not say what it accepts",
                "use mosquitto from version 2.0; see that this broker accepts packets of 5 MB and QoS 1",
            )
        ]
    packets = properties.maximum_packet_bytes
    accepts = f"the broker accepts packets of {'any size' if packets is None else f'{packets} bytes'}"
    found = [ok("packet size", accepts)]
    if packets is not None and packets < LARGEST_PACKET_BYTES:
        text = f"{accepts}, and messages have up to {LARGEST_PACKET_BYTES}"
        found = [problem("packet size", text, "raise the limit of the broker; mosquitto: max_packet_size 5242880")]
    if not properties.retains:
        text = "the broker keeps no retained messages, so no client finds a leader"
        found.append(problem("retained", text, "allow them"))
    if properties.maximum_qos < 1:
        found.append(problem("QoS", "the broker offers QoS 0 only", "allow QoS 1: announcements and devices need it"))
    if not properties.wildcards:
        found.append(problem("wildcards", "the broker refuses filters with wildcards", "allow them"))
    return [_answer_time("broker", f"{name} answers", properties.answer_seconds), *found]


def judge_store(url: str, newest_chunk: int, seconds: float) -> Finding:
    """Return whether the ledger at ``url`` is the cluster's; ``newest_chunk`` of shard 0, as this client sees it."""
    if newest_chunk == 0:
        return problem(
            "store",
            f"{url} has no chunk of shard 0, as every ledger has",
            "mount the ledger's disk there, or correct ledger_url in the client configuration; a folder must be that "
            "of the daemons, not a copy",
        )
    return _answer_time("store", f"{url} can be read, newest chunk of shard 0 is {newest_chunk}", seconds)


def judge_ledger_url(configured: str, announced: str, file: str) -> list[Finding]:
    """Return whether the client's store is the one that the cluster announces."""
    if configured == announced:
        return []
    text = f"{configured} in {file}, and the cluster announces {announced}"
    return [problem("ledger_url", text, f"correct ledger_url in {file}, unless both are names of one store")]


def judge_cluster(cluster: ClusterInfo, client_version: str) -> list[Finding]:
    without = [each.shard for each in cluster.shards if each.daemon is None]
    found = [ok("leaders", f"each of {len(cluster.shards)} shards has a leader")]
    if without:
        text = f"shards without a leader: {listed(without)}"
        found = [problem("leaders", text, "see the logs of the daemons, and ZooKeeper")]
    for daemon in cluster.daemons:
        found += _daemon(daemon)
    if (level := cluster.feature_level) is not None:
        found.append(_feature_level(level))
    others = sorted({each.version for each in cluster.daemons if each.version not in (None, client_version)} - {None})
    if others:
        text = f"the client is {client_version}, daemons are {', '.join(str(each) for each in others)}"
        return [*found, warning("versions", text, "install one version")]
    return [*found, ok("versions", f"client and daemons are {client_version}")]


def _feature_level(found: FeatureLevel) -> Finding:
    if found.problems:
        text = f"{found.level}; level {found.newest} is not possible yet: {'; '.join(found.problems)}"
        return warning("feature level", text, "upgrade all daemons, or none")
    possible = f"; every daemon supports {found.newest}: headgate cluster upgrade" if found.newest > found.level else ""
    return ok("feature level", f"{found.level}{possible}")


def _daemon(daemon: DaemonInfo) -> list[Finding]:
    name = f"daemon {daemon.daemon}"
    if daemon.state == "unreachable":
        remedy = "check that it runs, [http] host and advertised_host, and the network between the daemons"
        return [problem(name, daemon.problem, remedy)]
    found = []
    for each in daemon.components:
        if each.state == "ok":
            continue
        text, _, advice = each.reason.rpartition("; ")
        text, remedy = (text, advice) if text else (advice, "see its log")
        judge = problem if each.state == "failed" else warning
        found.append(judge(name, f"{each.component}: {text}", remedy))
    return found or [ok(name, daemon.state)]


def judge_clock(cluster: ClusterInfo, asked_ms: int, answered_ms: int) -> list[Finding]:
    """Return how far clocks are apart; the question left at ``asked_ms``, and the answer came at ``answered_ms``."""
    found: list[Finding] = []
    for each in cluster.daemons:
        if each.as_of_ms is None:
            continue
        # It was made between the question and the answer, or up to a second before: others share it.
        ahead_ms = max(0, each.as_of_ms - answered_ms) or min(0, each.as_of_ms - asked_ms)
        if abs(ahead_ms) < CLOCK_WARNING_SECONDS * 1000:
            continue
        direction = "ahead of" if ahead_ms > 0 else "behind"
        text = f"daemon {each.daemon} is {duration(abs(ahead_ms) / 1000)} {direction} this machine"
        judge = problem if abs(ahead_ms) >= CLOCK_PROBLEM_SECONDS * 1000 else warning
        found.append(judge("clock", text, "synchronize both machines (timedatectl, chronyc tracking)"))
    return found or [ok("clock", f"agrees with the daemons to {CLOCK_WARNING_SECONDS:g} s")]


def judge_clock_steps(wall_seconds: float, monotonic_seconds: float) -> list[Finding]:
    """Return whether the wall clock stepped while the checks ran; both clocks' time since the first check."""
    step = wall_seconds - monotonic_seconds
    if abs(step) < CLOCK_STEP_SECONDS:
        return []
    text = f"the wall clock stepped by {step:.1f} s while the checks ran"
    return [warning("clock", text, "check the time synchronization of this machine")]


def judge_certificate(setting: str, file: str, expires_at_seconds: float, now_seconds: float) -> Finding:
    days = (expires_at_seconds - now_seconds) / _DAY_SECONDS
    if days <= 0:
        return problem(setting, f"{file} has expired", "renew it, and reload what uses it (SIGHUP for a daemon)")
    if days < CERTIFICATE_WARNING_DAYS:
        return warning(setting, f"{file} expires in {days:.2g} days", "renew it")
    return ok(setting, f"{file} is valid for {days:.0f} days")


def judge_space(
    name: str, folder: str, free_bytes: int, size_bytes: int, needed_bytes: int, *, lacks_inodes: bool = False
) -> Finding:
    percent = 100 * free_bytes // max(1, size_bytes)
    free = f"{folder} has {free_bytes // 1_000_000} MB free, {percent} %"
    if lacks_inodes:
        free = f"{folder} has {percent} % of its inodes free (df -i), enough for {free_bytes // 1_000_000} MB"
    if free_bytes < needed_bytes:
        return problem(name, free, f"free space: {needed_bytes // 1_000_000} MB are needed")
    if free_bytes * 10 < size_bytes:
        return warning(name, free, f"free space, or use a file system with more{' inodes' * lacks_inodes}")
    return ok(name, free)


def judge_folder(
    name: str, folder: str, *, exists: bool, writable: bool, mode: int, is_ledger: bool = False
) -> Finding:
    """Return whether this user can use ``folder``, and whether others can change it."""
    if not exists:
        remedy = "it is created at the first start, if its parent is writable"
        if is_ledger:
            remedy = f"mount its disk, or put the ledger back; of a new cluster only, {remedy}"
        return warning(name, f"{folder} does not exist", remedy)
    if not writable:
        return problem(name, f"this user cannot write in {folder}", "chown it to the daemon's user, or remount it rw")
    if mode & 0o002 and not mode & 0o1000:
        return problem(name, f"every user can write in {folder}", f"chmod o-w {folder}")
    return ok(name, f"{folder} is writable, for this user and its group")


def _answer_time(check: str, text: str, seconds: float) -> Finding:
    took = f"{text} in {seconds * 1000:.0f} ms"
    if seconds > SLOW_SECONDS:
        return warning(check, took, "find out what is slow: the network, or the server")
    return ok(check, took)
