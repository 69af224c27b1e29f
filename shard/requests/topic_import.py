"""Decide an import of an external topic: create it from a listing of its source, or update it.

Pure. Importing a listing twice changes nothing. An update only adds and seals segments. Rules:

1. No segment is listed twice, every parent exists, and there are no cycles.
2. A sealed segment has an end offset exactly if positions are offsets. A segment has a hash range
   exactly if the source has hashes; it is not empty and within the source's bits.
3. A segment with children is sealed.
4. A child has only hashes that a parent had, and shares a hash with each parent.
5. The active segments cover every hash exactly once.
6. Nothing contradicts the topic: ranges, parents and end offsets stay, a sealed segment stays
   sealed, no active segment is missing, and no end offset is below an acknowledged one.
7. A new segment of a topic with hashes has parents.
8. A listing is of the topic's source, as far as both name it.

Sources forget segments: Kinesis lists a closed shard until its records expire. An unlisted known
parent therefore stays. A segment pruned here was sealed, and is not added again. Only a complete listing can
declare unlisted parents expired (``missing_parents``). In their place come the segments that were active before it and
had the same hashes: the last ancestors that consumers read. KCL treats every parent that it
cannot find as finished, so children can overtake an ancestor.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headgate.errors import LayoutError
from headgate.model import entries as e
from headgate.model.external_topic import OPAQUE_END_OFFSET, ExternalTopic, imported_segments, parse_hashes
from headgate.model.layout import Layout, Segment, SegmentState
from headgate.model.text import listed
from headgate.protocol.replies import TopicImportReply
from headgate.protocol.requests import ImportTopic, SegmentImport
from headgate.views.topics import TopicImportResult
from shard.requests.handlers import Answer, Decision, StepResult, Stepwise, user_command
from shard.requests.source_listing import GraphNode, check_graph, end_of, index_listing, range_text, step_cost
from shard.requests.topic_commands import MAX_SEGMENTS, describe, no_change, refuse_creation, repeated
from shard.state.shard_state import ShardState
from shard.state.topic import SegmentTail, Topic
from shard.steps import Steps
from shard.subscriptions.refusal import invalid


@dataclass(slots=True)
class ImportPlan:
    """What an import changes. All labels are the source's names."""

    created: list[e.ImportedSegment] = field(default_factory=list)
    sealed: dict[int, int] = field(default_factory=dict)
    """Known segment that is sealed now → its end offset."""
    sealed_labels: list[str] = field(default_factory=list)
    expired_parents: list[str] = field(default_factory=list)
    """Parents that the source no longer has."""


def import_topic(request: ImportTopic, state: ShardState, user: str) -> Steps[StepResult]:
    """Create an external topic of ``user``, or update it to match its source.

    The steps: check the listing, compare it with the topic, decide. If the layout changes after the first of these
    comparisons, or a copy of the request is decided, the listing is compared again, so the decision is about one state.
    """
    try:
        listed = yield from index_listing(request)
        topic, layout, plan = None, None, None
        while (
            plan is None
            or request.token in state.commands
            or _layout_of(topic := state.topics.get(request.topic)) is not layout
        ):
            yield step_cost(request)
            topic = state.topics.get(request.topic)
            if request.token in state.commands:
                return repeated(request.topic, state, _answer(request.topic, ImportPlan()))
            layout = _layout_of(topic)
            plan = yield from plan_import(request, listed, topic)
            yield step_cost(request)
        _check_acknowledged(topic, plan)
    except LayoutError as error:
        return invalid(f"topic {request.topic!r} cannot be imported: {error}")
    if topic is None and (refusal := refuse_creation(request.topic, request.shards, state)) is not None:
        return refusal
    entry = _entry(request, topic, plan, state.ids.next_id, user)
    if request.dry_run:
        return Decision((), _answer(request.topic, plan, _dry_run_topic(entry, topic, state.at_ms)), (entry,))
    return Decision((entry,), _answer(request.topic, plan))


def plan_import(
    request: ImportTopic, listed: Mapping[str, SegmentImport], topic: Topic | None
) -> Steps[ImportPlan | None]:
    """Return what ``request`` changes in ``topic``; None: the topic does not exist yet.

    ``listed``: the result of `index_listing`. The plan depends on the topic's layout only: if that changes between two
    steps, the result is None. Raises LayoutError: the listing violates a rule; the text names the segment.
    """
    layout, planner = _layout_of(topic), _Planner(request, listed, topic)
    for look in (planner.update_known_segments, planner.find_parents, planner.add_segments):
        look()
        yield step_cost(request)
        if _layout_of(topic) is not layout:
            return None
    graph = planner.graph()
    yield step_cost(request)
    check_graph(graph, request.hash_bits)
    return planner.plan


def _layout_of(topic: Topic | None) -> Layout | None:
    return None if topic is None else topic.layout


def _check_acknowledged(topic: Topic | None, plan: ImportPlan) -> None:
    """Rule 6: no end offset is below an acknowledged one."""
    for subscription in () if topic is None else topic.subscriptions.values():
        positions = subscription.progress.positions
        for segment_id, end in plan.sealed.items():
            if positions.get(segment_id, 0) > end:
                assert topic is not None, "it has a subscription"
                raise LayoutError(
                    f"segment {_label(topic.layout.segments[segment_id])!r} ends at {end}, but subscription "
                    f"{subscription.name!r} has acknowledged it to {positions[segment_id]}"
                )


class _Planner:
    """Compares a listing with the topic, and collects the plan."""

    def __init__(self, request: ImportTopic, listed: Mapping[str, SegmentImport], topic: Topic | None) -> None:
        self.plan = ImportPlan()
        self._request = request
        self._topic = topic
        self._external = _source_of(request, topic)
        self._listed = listed
        self._segments = {} if topic is None else topic.layout.segments
        self._known = {_label(segment): segment for segment in self._segments.values()}
        self._new = {
            label: item
            for label, item in self._listed.items()
            if label not in self._known and label not in self._external.pruned
        }
        """Parents first."""
        self._names = self._known.keys() | self._new.keys()
        self._parents: dict[str, list[str]] = {}
        """New segment → its parents that exist."""

    def update_known_segments(self) -> None:
        """Check rule 6, and seal the segments that the source has sealed since."""
        for label in sorted(self._listed.keys() & self._known.keys()):
            self._update_known_segment(self._listed[label], self._known[label])
        for label in sorted(self._listed.keys() & self._external.pruned):
            if end_of(self._listed[label], self._external.positions) is None:
                raise LayoutError(f"segment {label!r} is active; it was sealed, and is pruned")

    def find_parents(self) -> None:
        """Find the parents of the new segments, and seal those that are not listed."""
        self._parents = {label: self._parents_of(item) for label, item in self._new.items()}
        found = {parent for parents in self._parents.values() for parent in parents if parent in self._known}
        self._seal_unlisted_parents(found)

    def add_segments(self) -> None:
        """Add the new segments, parents first."""
        ids = {label: segment.segment_id for label, segment in self._known.items()}
        first_id = 0 if self._topic is None else self._topic.layout.next_segment_id
        for number, (label, item) in enumerate(self._new.items(), start=first_id):
            ids[label] = number
            self.plan.created.append(
                e.ImportedSegment(
                    segment=number,
                    label=label,
                    parents=[ids[parent] for parent in self._parents[label]],
                    hashes=item.hashes,
                    end_offset=end_of(item, self._request.positions),
                )
            )
        if len(ids) > MAX_SEGMENTS:
            raise LayoutError(f"it would hold {len(ids)} segments; the limit is {MAX_SEGMENTS}")

    def graph(self) -> dict[int, GraphNode]:
        nodes: dict[int, GraphNode] = {}
        for number, segment in self._segments.items():
            sealed = segment.state is SegmentState.SEALED or number in self.plan.sealed
            hashes = parse_hashes(self._external.hashes.get(number))
            nodes[number] = GraphNode(_label(segment), hashes, segment.parents, sealed)
        for item in self.plan.created:
            nodes[item.segment] = GraphNode(
                item.label,
                parse_hashes(item.hashes),
                tuple(item.parents),
                item.end_offset is not None,
                new=True,
                all_parents=len(item.parents) == len(self._listed[item.label].parents),
            )
        return nodes

    def _update_known_segment(self, item: SegmentImport, segment: Segment) -> None:
        label, segment_id = item.segment, segment.segment_id
        hashes, before = parse_hashes(item.hashes), parse_hashes(self._external.hashes.get(segment_id))
        if hashes != before:
            raise LayoutError(f"segment {label!r} has hashes {range_text(hashes)}; it had {range_text(before)}")
        had = {_label(self._segments[parent]) for parent in segment.parents}
        if others := [parent for parent in item.parents if parent in self._names and parent not in had]:
            raise LayoutError(f"segment {label!r} has a parent that it did not have before: {listed(sorted(others))}")
        end = end_of(item, self._external.positions)
        if segment.state is SegmentState.SEALED:
            if end != segment.end_offset:
                now = "active" if end is None else f"sealed at {end}"
                raise LayoutError(f"segment {label!r} is {now}; it was sealed at {segment.end_offset}")
        elif end is not None:
            self._seal(segment, end)

    def _parents_of(self, item: SegmentImport) -> list[str]:
        """Return the parents of a new segment that exist; rules 1 and 7."""
        label = item.segment
        found = item.parents
        missing: list[str] = []
        if not self._names.issuperset(found):
            found = [parent for parent in item.parents if parent in self._names]
            missing = [
                parent for parent in item.parents if parent not in self._names and parent not in self._external.pruned
            ]
        if missing and self._topic is not None:
            found = list(dict.fromkeys([*found, *self._forgotten(item)])) if self._request.complete else []
        if missing and ((self._topic is not None and not found) or self._request.missing_parents == "rejected"):
            hint = (
                ""
                if self._topic is None
                else "; if the source removed it before it was imported, import under another name"
            )
            raise LayoutError(f"segment {label!r} has the parent {missing[0]!r}, which is not listed{hint}")
        self.plan.expired_parents += [parent for parent in missing if parent not in self.plan.expired_parents]
        if self._topic is not None and not item.parents and self._request.hash_bits:
            raise LayoutError(f"segment {label!r} is new and has no parents, so its predecessors are unknown")
        return found

    def _forgotten(self, item: SegmentImport) -> list[str]:
        """Return the known segments that were active until now and had hashes of a new segment."""
        hashes = parse_hashes(item.hashes)
        return [
            label
            for label, segment in sorted(self._known.items())
            if segment.state is SegmentState.ACTIVE
            and (had := parse_hashes(self._external.hashes.get(segment.segment_id))) is not None
            and hashes is not None
            and hashes[0] <= had[1]
            and had[0] <= hashes[1]
        ]

    def _seal_unlisted_parents(self, parents: Collection[str]) -> None:
        """Rules 3 and 6: an unlisted parent was sealed before its source forgot it; list other active segments."""
        for label, segment in sorted(self._known.items()):
            if label in self._listed or segment.state is SegmentState.SEALED:
                continue
            if label in parents and self._request.positions == "opaque":
                self._seal(segment, OPAQUE_END_OFFSET)
            elif label in parents:
                raise LayoutError(f"segment {label!r} has children but is not listed: list it with its end_offset")
            elif self._request.complete:
                raise LayoutError(f"segment {label!r} is active, has no children and is not listed")

    def _seal(self, segment: Segment, end_offset: int) -> None:
        self.plan.sealed[segment.segment_id] = end_offset
        self.plan.sealed_labels.append(_label(segment))


def _source_of(request: ImportTopic, topic: Topic | None) -> ExternalTopic:
    if topic is None:
        return ExternalTopic(request.source, request.hash_bits, request.positions)
    external = topic.external
    if external is None:
        raise LayoutError("it already exists, and headgate stores its records; import under another name")
    if (external.positions, external.hash_bits) != (request.positions, request.hash_bits):
        raise LayoutError(
            f"it has {external.positions} positions and hashes of {external.hash_bits} bits; "
            f"this listing has {request.positions} positions and {request.hash_bits} bits"
        )
    if external.source and request.source and request.source != external.source:
        raise LayoutError(
            f"its source is {external.source!r}, and this listing is of {request.source!r}: import under another name"
        )
    return external


def _entry(request: ImportTopic, topic: Topic | None, plan: ImportPlan, next_id: int, user: str) -> e.TopicCommandEntry:
    if topic is None:
        return e.TopicImported(
            topic_id=next_id,
            topic=request.topic,
            token=request.token,
            segments=plan.created,
            positions=request.positions,
            hash_bits=request.hash_bits,
            source=request.source,
            user=user,
        )
    if not plan.created and not plan.sealed:
        return no_change(topic, request.token)
    return e.LayoutExtended(
        topic_id=topic.topic_id, token=request.token, created=plan.created, sealed=dict(sorted(plan.sealed.items()))
    )


def _dry_run_topic(entry: e.TopicCommandEntry, topic: Topic | None, at_ms: int) -> Topic:
    """Return the topic as the import would leave it, without changing ``topic``."""
    if isinstance(entry, e.TopicImported):
        trial = ShardState(0)
        trial.apply_all([entry], chunk=1, at_ms=at_ms)
        return trial.topics[entry.topic]
    assert topic is not None, "an update of no topic"
    if not isinstance(entry, e.LayoutExtended):
        return topic
    assert topic.external is not None, "an update of a topic that is not external"
    created = imported_segments(entry.created, topic.external.hash_bits, at_ms)
    layout = topic.layout.extended(created, entry.sealed, at_ms)
    tails = {segment.segment_id: SegmentTail(segment.end_offset or 0) for segment in layout.segments.values()}
    return replace(topic, layout=layout, tails=tails)


def _answer(name: str, plan: ImportPlan, dry_run_topic: Topic | None = None) -> Answer:
    def answer(state: ShardState) -> Stepwise:
        topic = dry_run_topic
        if topic is None:
            imported = state.topics[name]
            topic = replace(imported, tails=dict(imported.tails))
        return Stepwise(_describe_result(topic, state.shard, plan))

    return answer


def _describe_result(topic: Topic, shard: int, plan: ImportPlan) -> Steps[StepResult]:
    """``topic``: as the import has left it. It does not change."""
    yield len(topic.layout.segments)
    result = TopicImportResult(
        topic=describe(topic, shard),
        created=tuple(segment.label for segment in plan.created),
        sealed=tuple(plan.sealed_labels),
        expired_parents=tuple(plan.expired_parents),
    )
    return TopicImportReply(result=result)


def _label(segment: Segment) -> str:
    assert segment.label is not None, f"segment {segment.segment_id} of an external topic has no label"
    return segment.label


COMMANDS: Final = (user_command(ImportTopic, lambda body, state, user: Stepwise(import_topic(body, state, user))),)
