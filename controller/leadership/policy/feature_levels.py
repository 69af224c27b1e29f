"""Feature levels: what the daemons of a cluster may write, and which versions can be in it. Pure.

1. The cluster has one level, beside the rest of its configuration in ZooKeeper. A daemon writes nothing that the level
   does not allow: neither in the ledger nor in ZooKeeper. So the version before can replace it until the level rises.
2. A version supports levels from `FIRST` to the last of `LEVELS`. It reads what they allow at any time, because
   another daemon may have heard of a new level earlier. It refuses to join a cluster of another level.
3. An operator raises the level once every daemon supports the new one. It never falls. A new cluster begins at the
   last level of the daemon that starts it.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from headgate.model.text import short_list
from headgate.views.cluster import FeatureLevel

SHARDS_GROW: Final = 2
MURMUR_DIGESTS: Final = 3
LEVELS: Final = {
    1: "what version 0.1.0 writes",
    SHARDS_GROW: "raising the number of shards",
    MURMUR_DIGESTS: "digests of batches by MurmurHash3",
}
"""Level → what it allows beyond the one before."""
FIRST: Final = 1


def supported() -> tuple[int, int]:
    """Return the first and the last level that this version supports."""
    return FIRST, max(LEVELS)


def level_of(config: Mapping[str, Any]) -> int:
    """Return the level in a cluster's configuration; 0, which no version supports: it is unusable."""
    level = config.get("level", 1)
    return level if type(level) is int and level > 0 else 0


def refusal(config: Mapping[str, Any], level: int) -> str | None:
    """Return why a cluster with this configuration cannot do what ``level`` allows; None: it can."""
    if (present := level_of(config)) >= level:
        return None
    return f"the cluster has feature level {present}, and {LEVELS[level]} needs level {level}: headgate cluster upgrade"


def join_problem(level: int, version: str, levels: tuple[int, int]) -> str | None:
    """Return why a daemon of this ``version`` cannot be in a cluster of ``level``, and what to do; None: it can."""
    first, last = levels
    if first <= level <= last:
        return None
    remedy = "install the version that the other daemons have: headgate daemon list"
    if level < first:
        remedy = f"start a version that supports levels {level} to {first}, and run headgate cluster upgrade first"
    return f"the cluster has feature level {level}, and version {version} supports levels {first} to {last}: {remedy}"


def judged(level: int, daemons: Mapping[str, tuple[int, int]], maintenance: Collection[str]) -> FeatureLevel:
    """Return which level a cluster of ``level`` can have.

    ``daemons``: the live ones with the levels that each supports. ``maintenance``: live or not. Nothing else is known
    of daemons that are stopped.
    """
    newest = max((last for _, last in daemons.values()), default=level)
    problems = [
        f"daemon {name} supports levels {first} to {last}"
        for name, (first, last) in sorted(daemons.items())
        if not first <= newest <= last
    ]
    problems += [
        f"daemon {name} is in maintenance and not live, so its version is not known: start it, or end its maintenance "
        f"(headgate daemon drain {name} --off)"
        for name in sorted(set(maintenance) - set(daemons))
        if newest > level
    ]
    return FeatureLevel(level=level, newest=max(newest, level), problems=tuple(map(str, short_list(problems))))
