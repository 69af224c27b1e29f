"""All faults, by name."""

from collections.abc import Sequence

from chaos.faults import machine, network, processes, servers  # noqa: F401 - each adds its own
from chaos.faults.fault import CATALOGUE, Fault
from headgate.errors import ConfigError

__all__ = ["CATALOGUE", "select", "why_impossible"]


def select(names: Sequence[str]) -> list[type[Fault]]:
    """Return the faults with these names, in their order. Raises ConfigError for an unknown one."""
    unknown = [name for name in names if name not in CATALOGUE]
    if unknown:
        raise ConfigError(f"no fault is called {', '.join(unknown)}; choose from: {', '.join(CATALOGUE)}")
    return [CATALOGUE[name] for name in names]


def why_impossible(fault: type[Fault], *, has_shim: bool, has_spark: bool, has_tls: bool) -> str | None:
    """Return why this machine cannot have a fault; None if it can."""
    if fault.needs_shim and not has_shim:
        return "there is no C compiler (cc, gcc or clang)"
    if fault.needs_spark and not has_spark:
        return "the run is without Spark"
    if fault.needs_tls and not has_tls:
        return "the run is without TLS"
    return None
