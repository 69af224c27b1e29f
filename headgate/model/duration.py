"""Durations as people read them. Pure."""


def duration(seconds: float) -> str:
    """Return ``seconds`` as ``0.4 s``, ``12 s``, ``3 min``, ``2 h`` or ``3 days``."""
    if seconds < 1:
        return f"{max(seconds, 0):.1f} s"
    for unit, length, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
