"""Random layouts, and random sets of drained segments in them, for property tests."""

from hypothesis import strategies as st

from headgate.errors import LayoutError
from headgate.model.layout import Layout, SegmentState

END_OFFSET = 10

_CHANGES = st.lists(st.tuples(st.sampled_from(["split", "merge", "prune"]), st.integers(0, 1000)), max_size=10)


def change(layout: Layout, verb: str, pick: int) -> Layout:
    """Return ``layout`` after one change; ``pick`` selects the segment. An impossible change returns the same layout."""
    active = sorted(layout.active(), key=lambda segment: segment.first_hash)
    at = pick % len(active)
    try:
        if verb == "split":
            return layout.split(active[at].segment_id, END_OFFSET, 0)
        if verb == "merge":
            pair = [segment.segment_id for segment in active[at : at + 2]]
            return layout.merge(pair[0], pair[-1], dict.fromkeys(pair, END_OFFSET), 0)
        return layout.prune([sorted(layout.segments)[pick % len(layout.segments)]])
    except LayoutError:
        return layout


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Draw a layout: one to four initial segments, then up to ten splits, merges and prunes."""
    layout = Layout.initial(draw(st.integers(1, 4)), 0)
    for verb, pick in draw(_CHANGES):
        layout = change(layout, verb, pick)
    return layout


@st.composite
def layouts_and_drained(draw: st.DrawFn) -> tuple[Layout, set[int]]:
    """Draw a layout and some of its sealed segments."""
    layout = draw(layouts())
    sealed = [s for s, segment in sorted(layout.segments.items()) if segment.state is SegmentState.SEALED]
    return layout, draw(st.sets(st.sampled_from(sealed))) if sealed else set()
