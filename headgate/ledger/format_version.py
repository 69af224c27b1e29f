"""Refuse objects of the ledger that another version of headgate wrote.

headgate reads one format of each kind and converts none.
"""

import msgspec

from headgate.errors import LedgerFormatError


class _FormatField(msgspec.Struct):
    format: int


_DECODER = msgspec.json.Decoder(_FormatField)


def check_format(name: str, found: int, supported: int) -> None:
    """Raise LedgerFormatError unless the object ``name`` has the ``supported`` format."""
    if found == supported:
        return
    if found < supported:
        advice = (
            "headgate does not convert ledgers: start a new cluster on an empty ledger URL, or run the older version"
        )
    else:
        advice = "run the newer version of headgate that wrote it"
    raise LedgerFormatError(f"{name} has format {found}, this version of headgate reads format {supported}; {advice}")


def check_json_format(name: str, raw: bytes, supported: int) -> None:
    """Check the ``format`` field of a JSON object before any other field; raises msgspec.DecodeError if it has none."""
    check_format(name, _DECODER.decode(raw).format, supported)
