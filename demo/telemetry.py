"""Real input: samples of this machine, keyed by the measured quantity.

Each reading takes a few dozen samples: every CPU, disk and network interface, and the busiest processes. Each sample
has a counter per key, so that a receiver can detect missing, duplicate and reordered records without other sources.
``python -m demo.telemetry`` is `trials.producer` with these samples.
"""

import itertools
from collections import Counter
from collections.abc import Iterator

import msgspec
import psutil

from trials.producer import command

BUSIEST = 24
"""Number of processes that are measured."""
REFRESH_READINGS = 40
"""Number of readings after which the busiest processes are selected again."""


class Telemetry:
    """Measures the machine repeatedly."""

    def __init__(self) -> None:
        self._counters: Counter[str] = Counter()
        self._busiest: list[psutil.Process] = []

    def samples(self) -> Iterator[tuple[str, int, bytes]]:
        """Return (key, counter, record's value) of samples without end; one reading takes a few milliseconds."""
        for reading in itertools.count():
            if reading % REFRESH_READINGS == 0:
                self._busiest = _busiest()
            for key, value in self._measured():
                counter = self._counters[key]
                self._counters[key] += 1
                yield key, counter, msgspec.json.encode({"counter": counter, "value": value})

    def _measured(self) -> Iterator[tuple[str, float]]:
        for number, times in enumerate(psutil.cpu_times(percpu=True)):
            for field in ("user", "system", "idle", "iowait", "softirq"):
                yield f"cpu/{number}/{field}", getattr(times, field, 0.0)
        for disk, io in psutil.disk_io_counters(perdisk=True).items():
            for field in ("read_count", "write_count", "read_bytes", "write_bytes"):
                yield f"disk/{disk}/{field}", getattr(io, field)
        for nic, traffic in psutil.net_io_counters(pernic=True).items():
            for field in ("bytes_sent", "bytes_recv", "packets_sent", "packets_recv"):
                yield f"net/{nic}/{field}", getattr(traffic, field)
        memory = psutil.virtual_memory()
        yield "memory/available", memory.available
        yield "memory/used", memory.used
        for process in self._busiest:
            try:
                with process.oneshot():
                    times, resident = process.cpu_times(), process.memory_info().rss
            except psutil.NoSuchProcess:
                continue  # It has ended.
            yield f"process/{process.pid}/cpu_seconds", times.user + times.system
            yield f"process/{process.pid}/resident_bytes", resident


def _busiest() -> list[psutil.Process]:
    used: list[tuple[float, int, psutil.Process]] = []
    for process in psutil.process_iter():
        try:
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # It has ended, or belongs to another user.
        used.append((times.user + times.system, process.pid, process))
    return [process for _, _, process in sorted(used, key=lambda row: (-row[0], row[1]))[:BUSIEST]]


if __name__ == "__main__":
    command(lambda: Telemetry().samples())()
