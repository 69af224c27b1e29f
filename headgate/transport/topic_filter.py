"""Which topics an MQTT topic filter takes in.

Levels are parted by ``/``. ``+`` stands for any one level, ``#`` at the end for all that follow and for the level
before it. A filter that begins with a wildcard leaves out topics that begin with ``$``, which are the broker's own.
"""

from __future__ import annotations


def has_wildcard(topic_filter: str) -> bool:
    """Return whether ``topic_filter`` can match more than the topic of the same name."""
    return "+" in topic_filter or "#" in topic_filter


def filter_matches(topic_filter: str, topic: str) -> bool:
    """Return whether a message on ``topic`` is delivered to a subscriber of ``topic_filter``."""
    if topic_filter == topic:
        return True
    if topic.startswith("$") and topic_filter[:1] in {"+", "#"}:
        return False
    wanted = topic_filter.split("/")
    levels = topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place == len(levels) or level not in {"+", levels[place]}:
            return False
        if place + 1 == len(levels) and wanted[place + 1 :] == ["#"]:
            return True
    return len(wanted) == len(levels)
