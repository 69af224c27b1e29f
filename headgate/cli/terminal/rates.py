"""Format sizes, rates, and when a backlog will be drained: ``?`` is not known yet, ``-`` does not exist. Pure."""

from typing import Final

from headgate.model.time_text import duration
from headgate.views.subscriptions import Outlook

UNKNOWN: Final = "?"
NONE: Final = "-"
_EXACT_BELOW: Final = 100
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_THOUSAND: Final = 1000
_OUTLOOKS: Final[dict[Outlook, str]] = {"empty": NONE, "never": "never", "not_tracked": NONE}


def format_bytes(size: int) -> str:
    value, unit = float(size), 0
    while value >= _THOUSAND and unit < len(_UNITS) - 1:
        value, unit = value / _THOUSAND, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def rate_text(per_second: float | None) -> str:
    if per_second is None:
        return UNKNOWN
    return f"{per_second:.1f}" if per_second < _EXACT_BELOW else f"{per_second:,.0f}".replace(",", " ")


def outlook_text(outlook: Outlook, drained_in_seconds: float | None) -> str:
    """Return ``4 min``, or ``never`` for a backlog that does not shrink."""
    if outlook == "shrinking" and drained_in_seconds is not None:
        return duration(drained_in_seconds)
    return _OUTLOOKS.get(outlook, UNKNOWN)
