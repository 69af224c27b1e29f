"""What docs/protocol.md must contain for each message, derived from the structs."""

import typing

import msgspec
from msgspec import inspect as shapes

from headgate.model.layout import BucketRange
from headgate.protocol import backlog, codec, replies, request_fields, requests
from headgate.protocol.replies import PageReply, Push, ReplyBody
from headgate.protocol.request_fields import (
    Command,
    ConsumerRequest,
    HashText,
    Label,
    LedgerIdText,
    ListRequest,
    Name,
    ProgramText,
    ReaderRequest,
    RequestBody,
    SubscriptionCommand,
    SubscriptionRequest,
    TopicCommand,
    TopicRequest,
)
from headgate.views import cluster, explanations, subscriptions, topics
from headgate.views import topics as producers

BASES = (RequestBody, ReplyBody, Push)
PYTHON_PATTERN = typing.get_args(Name)[1].pattern
NAME_PATTERN = PYTHON_PATTERN.replace(r"\Z", "$")
"""As other languages write it. In Python, "$" also matches before a trailing newline."""
PATTERNS = {
    PYTHON_PATTERN: "a name",
    typing.get_args(Label)[1].pattern: "a label",
    typing.get_args(HashText)[1].pattern: "a hash",
    typing.get_args(ProgramText)[1].pattern: "a program text",
    typing.get_args(LedgerIdText)[1].pattern: "32 hexadecimal digits",
}
UNDOCUMENTED = (
    cluster.EventList,  # of the API only
    cluster.LedgerEvent,
    BucketRange,  # in no message
    msgspec.Struct,
    RequestBody,
    Command,
    TopicRequest,
    TopicCommand,
    SubscriptionRequest,
    SubscriptionCommand,
    ConsumerRequest,
    ReaderRequest,
    ListRequest,
    ReplyBody,
    PageReply,
)
VIEWS = cluster, explanations, producers, subscriptions, topics
MODULES = backlog, codec, replies, request_fields, requests, *VIEWS
STRUCTS = sorted(
    {
        kind
        for module in MODULES
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in UNDOCUMENTED
    },
    key=lambda kind: kind.__name__,
)


def heading(kind: type[msgspec.Struct]) -> str:
    if kind is Push:
        return "Push (common fields)"
    if issubclass(kind, BASES):
        return f"`{kind.__struct_config__.tag}` {kind.__name__}"
    return f"{kind.__name__} ({'array' if kind.__struct_config__.array_like else 'map'})"


def rows(kind: type[msgspec.Struct]) -> list[list[str]]:
    """Return field, type, limits and default of each field, without the common fields."""
    inherited = {
        name for base in BASES if kind is not base and issubclass(kind, base) for name in base.__struct_fields__
    }
    return [
        [f"`{field.name}`", type_name(field.type), limits(field.type), default(field)]
        for field in shapes.type_info(kind).fields
        if field.name not in inherited
    ]


def type_name(of: shapes.Type) -> str:
    match of:
        case shapes.UnionType(types=types):
            bases = [
                base
                for base in BASES
                if all(isinstance(t, shapes.StructType) and issubclass(t.cls, base) for t in types)
            ]
            return "body" if bases else " or ".join(type_name(each) for each in types)
        case shapes.ListType(item_type=item) | shapes.VarTupleType(item_type=item):
            return f"array of {type_name(item)}"
        case shapes.NamedTupleType():
            return f"[{', '.join(type_name(item.type) for item in of.fields)}]"
        case shapes.TupleType(item_types=items):
            return f"[{', '.join(type_name(item) for item in items)}]"
        case shapes.DictType(key_type=key, value_type=value):
            return f"map of {type_name(key)} to {type_name(value)}"
        case shapes.StructType(cls=kind):
            return kind.__name__
        case shapes.LiteralType() | shapes.EnumType():
            return "str"
    names = {
        shapes.IntType: "int",
        shapes.FloatType: "float",
        shapes.BoolType: "bool",
        shapes.StrType: "str",
        shapes.BytesType: "bin",
        shapes.NoneType: "nil",
    }
    return names[type(of)]


def limits(of: shapes.Type) -> str:
    """Return the limits as written in the document; empty if there are none."""
    match of:
        case shapes.UnionType(types=types):
            return "; ".join(filter(None, map(limits, types)))
        case (
            shapes.ListType(item_type=item, min_length=low, max_length=high)
            | shapes.VarTupleType(item_type=item, min_length=low, max_length=high)
        ):
            within = "" if isinstance(item, shapes.StructType) else limits(item).removeprefix("each ")
            return "; ".join(filter(None, [_length(low, high, "items"), within and f"each {within}"]))
        case shapes.TupleType(item_types=items):
            within = {limits(item) for item in items} - {""}
            assert len(within) <= 1, "a way to write these limits is missing here"
            return f"each {within.pop()}" if within else ""
        case shapes.DictType(value_type=value, min_length=low, max_length=high):
            return "; ".join(
                filter(None, [_length(low, high, "items"), f"each {limits(value)}" if limits(value) else ""])
            )
        case shapes.IntType(ge=low, le=high) if high is not None:
            power = (high + 1).bit_length() - 1
            return f"{low} to 2^{power}-1" if high > 2**20 and high == 2**power - 1 else f"{low} to {high}"
        case shapes.StrType(pattern=pattern) if pattern is not None:
            assert pattern in PATTERNS, "a way to write this pattern is missing here"
            return PATTERNS[pattern]
        case shapes.StrType(min_length=low, max_length=high):
            return _length(low, high, "characters")
        case shapes.BytesType(min_length=low, max_length=high):
            return _length(low, high, "bytes")
        case shapes.LiteralType(values=values):
            return ", ".join(f'`"{value}"`' for value in values)
        case shapes.EnumType(cls=kind):
            return ", ".join(f'`"{member.value}"`' for member in sorted(kind))
    return ""


def default(field: shapes.Field) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return f"`{'nil' if value is None else msgspec.json.encode(value).decode()}`"


def _length(low: int | None, high: int | None, unit: str) -> str:
    if high is None:
        return ""
    return f"at most {high} {unit}" if low is None else f"{low} to {high} {unit}"
