"""Say who should rather get what is free, because it knows the keys already.

Values in, values out; whether they have room is decided in coordinator.balancing.target. For each place that nobody holds:

1. Whoever holds keys of it, because its segment was cut otherwise before; then whoever holds its neighbours.
2. If nobody holds anything of its segment: whoever holds, or held until now, its nearest held ancestors, rather those
   who hold the same buckets of them: a key keeps its bucket through splits and merges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coordinator.decisions.gate import nearest_ancestors
from headgate.model.bucket_ranges import Place, Share, buckets_of, segment_of
from headgate.model.layout import Layout


def heirs_of(
    holders: Mapping[Place, str],
    layout: Layout,
    places: Iterable[Place],
) -> dict[Place, Sequence[str]]:
    """Return for each free one of ``places`` who should rather get it, best first; nothing where nobody should.

    ``holders``: what is held, revoked or not → by whom.
    """
    shares: dict[int, list[Place]] = {}
    for place in holders:
        if isinstance(place, Share):
            shares.setdefault(place.segment, []).append(place)
    heirs: dict[Place, Sequence[str]] = {}
    for place in places:
        if place in holders:
            continue
        segment = segment_of(place)
        if not shares and segment == place and not layout.segments[segment].parents:
            continue
        for generation in ([segment], *nearest_ancestors(layout, segment)):
            held = [part for s in generation for part in (s, *shares.get(s, ())) if part in holders]
            if held:
                heirs[place] = _ranked(place, held, holders)
                break
    return heirs


def _ranked(place: Place, held: Iterable[Place], holders: Mapping[Place, str]) -> list[str]:
    """Return the holders of ``held``, those of the same buckets first, then of buckets near by."""
    wanted = buckets_of(place)

    def distance(part: Place) -> int:
        buckets = buckets_of(part)
        return max(0, buckets.start - wanted.stop + 1, wanted.start - buckets.stop + 1)

    return list(dict.fromkeys(holders[part] for part in sorted(held, key=lambda p: (distance(p), p))))
