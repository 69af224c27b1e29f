"""The dates of certificates, as another library wrote them."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509

from controller.local.certificates import LocalCertificateAuthority
from headgate.files.tls import Validity, validity_of

BEGIN, END = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2021, 1, 2, 3, 4, 5, tzinfo=UTC)
SECOND = timedelta(seconds=1)
VERSION_1: Final = """\
-----BEGIN CERTIFICATE-----
MIIBIzCByQIUJRfg6CLQLxy2vItOEcv9EKM50YUwCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJdmVyc2lvbi0xMB4XDTI2MTEyMjE5MjA1MFoXDTI2MTIxMjE5MjA1MFow
FDESMBAGA1UEAwwJdmVyc2lvbi0xMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
eBdgXh1WqzuAlSWGeWwbbLxy0pYtLHH3zINk6UQ2mfEKIBSLMN0dGGSERX5nz4+R
dXlfwIcIJDEt7FxsbPWACzAKBggqhkjOPQQDAgNJADBGAiEAvL7jYff+eryXqwaZ
2efaPff1uh0BqCJdePxI653sOEMCIQDtGhhiCJg2gsw7mJrLd71+UkY7wVKzArjV
iKp0xRSBig==
-----END CERTIFICATE-----
"""
"""Made with ``openssl x509 -req``, which adds no extensions. This version has no field of the version."""


@pytest.mark.parametrize(
    ("not_before", "not_after"),
    [
        (BEGIN, END),
        (datetime(1950, 1, 1, tzinfo=UTC), datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (datetime(1999, 12, 31, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)),
        (datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
    ids=["usual", "two-digit years", "four-digit year", "no end"],
)
def test_the_dates_are_those_of_the_certificate(tmp_path: Path, not_before: datetime, not_after: datetime) -> None:
    files = LocalCertificateAuthority(tmp_path).issue("a", client=True, not_before=not_before, not_after=not_after)
    der = ssl.PEM_cert_to_DER_cert(files.certificate_file.read_text())

    assert Validity(not_before, not_after) == validity_of(der)


def test_a_certificate_of_version_1_has_dates_too() -> None:
    expected = x509.load_pem_x509_certificate(VERSION_1.encode())
    assert x509.Version.v1 == expected.version

    found = validity_of(ssl.PEM_cert_to_DER_cert(VERSION_1))

    assert Validity(expected.not_valid_before_utc, expected.not_valid_after_utc) == found


def test_every_truncated_certificate_is_an_error(tmp_path: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert(LocalCertificateAuthority(tmp_path).ca_file.read_text())
    for length in range(len(der)):
        with pytest.raises(ValueError):
            validity_of(der[:length])


@pytest.mark.parametrize("der", [b"\x02\x01\x00", b"\x30\x80", b"\x30\xff\x01"], ids=["number", "endless", "huge"])
def test_other_data_is_an_error(der: bytes) -> None:
    with pytest.raises(ValueError):
        validity_of(der)


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        (BEGIN - SECOND, "is not valid before 2020-01-02 03:04:05 UTC; is the clock of this machine right?"),
        (BEGIN, None),
        (END, None),
        (END + SECOND, "expired at 2021-01-02 03:04:05 UTC; renew it"),
    ],
    ids=["before", "first second", "last second", "after"],
)
def test_both_dates_belong_to_the_validity(now: datetime, problem: str | None) -> None:
    assert problem == Validity(BEGIN, END).problem(now)
