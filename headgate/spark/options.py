"""The options of the source and the sink, checked before anything starts."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS
from headgate.errors import ConfigError

SINK_TIMEOUT_SECONDS: Final = 120.0
"""Longer than an election, a restart and a bad network together, as a producer's."""
_OF_SPARK: Final = ("checkpointlocation", "queryname")
"""Options of a query that Spark passes on to its sink."""
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0.001, le=31_536_000)]


class TopicOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    topic: str
    config: str | None = None
    """Path of the client's configuration; None: `load_client_config` finds it."""
    timeout_seconds: Seconds = DEFAULT_TIMEOUT_SECONDS
    """How long to wait for the broker, and for a leader."""


class BatchOptions(TopicOptions, frozen=True, kw_only=True, rename="camel"):
    starting_offsets: str = "earliest"
    ending_offsets: str = "latest"


class StreamOptions(TopicOptions, frozen=True, kw_only=True, rename="camel"):
    starting_offsets: str = "earliest"
    max_records_per_trigger: Count | None = None
    max_bytes_per_trigger: Count | None = None
    subscription: str | None = None
    fail_on_data_loss: Literal["true", "false"] = "true"


class SinkOptions(TopicOptions, frozen=True, kw_only=True, rename="camel"):
    producer: str | None = None
    """How the names of the producers begin."""
    timeout_seconds: Seconds = SINK_TIMEOUT_SECONDS
    """For the outcome of a record as well."""


OptionsT = TypeVar("OptionsT", bound=TopicOptions)


def checked(kind: type[OptionsT], given: Mapping[str, str]) -> OptionsT:
    """Return ``given``, whose names are in lower case; ``path``, the argument of `load` and `save`, is the topic.

    Raises ConfigError: an option is unknown, missing or invalid.
    """
    given = {name.lower(): value for name, value in given.items() if name.lower() not in _OF_SPARK}
    names = {field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(kind)}
    values = {("topic" if name == "path" else name): value for name, value in given.items()}
    if (topic := given.get("topic")) not in (None, given.get("path", topic)):
        raise ConfigError(f"format headgate: option topic is {topic!r}, and the argument {given['path']!r}: give one")
    if unknown := sorted(values.keys() - names):
        raise ConfigError(
            f"format headgate: unknown option {', '.join(unknown)}; options are {', '.join(names.values())}"
        )
    try:
        options = msgspec.convert({names[name]: value for name, value in values.items()}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"format headgate: {error}") from None
    if isinstance(options, StreamOptions) and options.max_records_per_trigger and options.max_bytes_per_trigger:
        raise ConfigError("format headgate: give maxRecordsPerTrigger or maxBytesPerTrigger, not both")
    return options
