"""The loopback address, and that nothing else names one. A node without IPv4: tests/system/test_without_ipv4.py."""

import ast
import socket
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from headgate.transport.loopback import IPV4, host_port, loopback
from tests.support.source_folders import ROOT, SOURCE_FOLDERS

FOLDERS = set(SOURCE_FOLDERS) - {"examples", "tests"}
EXAMPLES = {"controller/settings/load.py"}
"""An error message gives an example."""


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Look at the machine again, before and after the test."""
    loopback.cache_clear()
    yield
    loopback.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_it_is_the_address_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loopback() == IPV4
    loopback.cache_clear()
    monkeypatch.setattr(socket.socket, "bind", Mock(side_effect=OSError("Cannot assign requested address")))
    assert loopback() == "::1"


@pytest.mark.parametrize(
    ("host", "text"), [("127.0.0.1", "127.0.0.1:7"), ("::1", "[::1]:7"), ("[::1]", "[::1]:7"), ("zk1", "zk1:7")]
)
def test_an_ipv6_address_is_in_brackets_before_a_port(host: str, text: str) -> None:
    assert host_port(host, 7) == text


def test_one_module_names_the_ipv4_address() -> None:
    named = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if IPV4 in (source := path.read_text()) and any(IPV4 in text for text in constants(ast.parse(source)))
    }

    assert {"headgate/transport/loopback.py"} == named - EXAMPLES


def constants(module: ast.Module) -> Iterator[str]:
    """Yield the texts of a module that are no documentation."""
    documentation = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value
