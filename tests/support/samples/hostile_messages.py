"""Invalid messages: noise, and valid messages that were damaged or forged."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

DEEP = (b"\x91" * 3000, b"\x81\xa1x" * 3000, b"\x91" * 200_000)
"""Raw msgpack: nested deeper than any decoder supports."""
ABSURD = (
    *(
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdc\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ),
    *(b"\xd4\x05\x01", b"\xc7\x0c\xff" + b"\xff" * 12, b"\xd6\xff\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01"),
    *(b"\xa2\xff\xfe", b"\xc1", b"\xca\x7f\xc0\x00\x00", b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00"),
)
"""Raw msgpack: counts without elements, extensions, invalid UTF-8, an unused opcode, NaN and infinity."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -(2**63), 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 1.0, 0.5, float("inf")),
    *("", "\n", "orders", "orders\n", "a/b", "+", "#", "x" * 101, "\x00", "é", "\ud7ff", b"", b"\xff\xfe", b"x" * 2000),
    *([], [[]], [None], [0], [0, 0], [1, 1], {}, {"x": 1}, [[0, 0, 0, 0, 0]], [[b"", b"", -1]], [["", "", 0]]),
    *([[b"k", b"v", 0]] * 3, [[b"k", b"v", 0, 9]], [[b"k"]], list(range(300)), {str(n): n for n in range(300)}),
)


def packed(fields: dict[str, Any]) -> bytes:
    """Return a map; `msgspec.Raw` values are inserted unchanged."""
    head = b"\xde" + len(fields).to_bytes(2, "big")
    return head + b"".join(
        msgspec.msgpack.encode(name)
        + (bytes(value) if isinstance(value, msgspec.Raw) else msgspec.msgpack.encode(value))
        for name, value in fields.items()
    )


@st.composite
def _misfit(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """A valid message with changed, additional or missing fields, in its envelope or its body."""
    message: dict[str, Any] = msgspec.msgpack.decode(draw(st.sampled_from(valid)))
    body = message.get("body")
    fields: dict[str, Any] = body if body is not None and draw(st.booleans()) else message
    raw = st.sampled_from([*ABSURD, *DEEP]).map(msgspec.Raw)
    anything = st.sampled_from(VALUES) | raw | st.integers(-(2**63), 2**64 - 1)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([*fields, "protocol", "unheard_of"]))
        if name in fields and draw(st.integers(0, 4)) == 0:
            del fields[name]
        else:
            fields[name] = draw(anything)
    return packed(message if fields is message else message | {"body": msgspec.Raw(packed(fields))})


@st.composite
def _damaged(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """A valid message with flipped bits, truncated or extended."""
    data = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    end = draw(st.sampled_from([None, len(data), len(data)]) | st.integers(0, len(data)))
    return bytes(data[:end]) + draw(st.sampled_from([b"", b"", b"\x00", *DEEP]))


def hostile(valid: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return payloads: noise, and modified ``valid`` messages."""
    return st.binary(max_size=100) | _damaged(valid) | _misfit(valid)
