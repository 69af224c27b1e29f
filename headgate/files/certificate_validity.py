"""Read from a certificate how long it is valid. Pure.

Python's `ssl` shows the dates of a certificate only during a handshake, and a library for two dates
would be a large dependency of every client. The dates have a fixed place in the DER encoding: RFC
5280, sections 4.1 and 4.1.2.5. OpenSSL checks everything else about the certificate.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

SEQUENCE: Final = 0x30
VERSION: Final = 0xA0
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
LONG_LENGTH: Final = 0x80


@dataclass(frozen=True, slots=True)
class Validity:
    not_before: datetime
    not_after: datetime

    def problem(self, now: datetime) -> str | None:
        if now < self.not_before:
            return f"is not valid before {self.not_before:%Y-%m-%d %H:%M:%S} UTC; is the clock of this machine right?"
        if now > self.not_after:
            return f"expired at {self.not_after:%Y-%m-%d %H:%M:%S} UTC; renew it"
        return None


def validity_of(der: bytes) -> Validity:
    """Return the validity of the certificate in ``der``. Raises ValueError if it is none."""
    _, certificate = _element(der, SEQUENCE)
    _, body = _element(certificate, SEQUENCE)
    if body[:1] == bytes([VERSION]):
        body, _ = _element(body, VERSION)
    for _ in ("serial number", "signature algorithm", "issuer"):
        body, _ = _element(body)
    _, dates = _element(body, SEQUENCE)
    dates, not_before = _time(dates)
    _, not_after = _time(dates)
    return Validity(not_before, not_after)


def _element(data: bytes, expected_tag: int | None = None) -> tuple[bytes, bytes]:
    """Return what follows the first element of ``data``, and the contents of that element."""
    if len(data) < 2 or expected_tag not in {None, data[0]}:  # noqa: PLR2004 - tag and length
        raise ValueError("not the DER encoding of a certificate")
    length, begin = data[1], 2
    if length & LONG_LENGTH:
        begin += length & ~LONG_LENGTH
        length = int.from_bytes(data[2:begin])
    end = begin + length
    if end > len(data):
        raise ValueError("a certificate that ends early")
    return data[end:], data[begin:end]


def _time(data: bytes) -> tuple[bytes, datetime]:
    rest, contents = _element(data)
    text = contents.decode("ascii")
    if data[0] == UTC_TIME:
        # Two digits of the year; RFC 5280 defines the century.
        text = ("19" if text >= "50" else "20") + text
    elif data[0] != GENERALIZED_TIME:
        raise ValueError("a certificate without dates")
    return rest, datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
