"""The images and the compose file. No container engine runs here: linters check them, and what they name must exist."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

from tests.deploy.test_units import DEPLOY, directives
from tests.support.documents.program_help import help_of

ROOT = DEPLOY.parent
BIN = Path(sys.executable).parent
DOCKERFILE = DEPLOY / "docker/Dockerfile"
COMPOSE = DEPLOY / "docker/compose.yaml"
TEXT = DOCKERFILE.read_text().replace("\\\n", "")
STACK: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_linter_of_images_finds_nothing() -> None:
    done = subprocess.run(
        [BIN / "hadolint", "--no-color", DOCKERFILE], capture_output=True, text=True, timeout=60, check=False
    )

    assert (0, "") == (done.returncode, done.stdout)


def test_images_of_others_are_pinned_by_digest_or_the_file_says_how() -> None:
    images = {found["image"] for found in SERVICES.values() if not found["image"].startswith("headgate")}
    unpinned = {image for image in images if not re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", image)}

    assert {"zookeeper:3.9.3"} == unpinned
    for image, text in (("zookeeper:3.9.3", COMPOSE.read_text()), ("python:3.11-slim-bookworm", TEXT)):
        assert f"docker buildx imagetools inspect --format '{{{{.Manifest.Digest}}}}' {image}\n" in text


def test_the_stack_is_a_valid_compose_file() -> None:
    # Engines accept a tag before a digest; this parser does not.
    parsed = compose_spec.PyCompose.from_yaml(re.sub(r":[\w.-]+(?=@sha256:)", "", yaml.safe_dump(STACK)))

    assert {"zookeeper", "mosquitto", "daemon", "drain", "prometheus"} <= set(SERVICES)
    assert set(SERVICES) == set(parsed.service_names())


def test_every_file_that_the_image_copies_exists_and_is_sent_to_the_builder() -> None:
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", TEXT, re.MULTILINE) for name in line.split()]
    sent = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)

    assert sorted(sent) == sorted(copied)
    assert [] == [name for name in copied if not (ROOT / name).exists()]


def test_images_do_not_run_as_root() -> None:
    users = re.findall(r"^(FROM|USER) (.*)$", TEXT, re.MULTILINE)

    assert ("USER", "10001:10001") == users[-1]
    assert all("user" in SERVICES[name] or SERVICES[name]["image"].startswith("headgate") for name in SERVICES)


def commands() -> list[list[str]]:
    """Return the command lines of headgate in both files."""
    lines = [re.findall(r'"([^"]*)"', line) for line in re.findall(r"^CMD (\[.*\])$", TEXT, re.MULTILINE)]
    return [*lines, *(SERVICES[name]["command"] for name in ("daemon", "drain") if "command" in SERVICES[name])]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_the_program_has_the_commands_and_options(command: list[str]) -> None:
    words = [word for word in command if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
    shown = help_of(("-m", "headgate"), tuple(words))

    assert "Usage" in shown or "usage" in shown
    assert [] == [option for option in command if option.startswith("--") and f"{option} " not in shown]


def test_the_drain_service_listens_as_its_unit_does() -> None:
    environment = dict(value.split("=", 1) for value in directives("headgate-backlog.service")["Environment"])
    command = commands()[1]

    assert ["drain", "serve"] == command[:2]
    assert {environment["HEADGATE_LEDGER"], environment["HEADGATE_DRAIN_SOCKET"]} <= set(command)
    assert f"JAVA_TOOL_OPTIONS={environment['JAVA_TOOL_OPTIONS']}" in TEXT
    assert SERVICES["daemon"]["volumes"] == SERVICES["drain"]["volumes"]


def test_versions_and_ports_are_those_of_the_program() -> None:
    settings = tomllib.loads((DEPLOY / "headgate.toml").read_text())
    ours = {SERVICES[name]["image"] for name in SERVICES if SERVICES[name]["image"].startswith("headgate")}

    assert {f"headgate:{VERSION}", f"headgate-spark:{VERSION}"} == ours
    assert f"EXPOSE {settings['http']['port']}\n" in TEXT
    assert f"https://localhost:{settings['http']['port']}/livez" in TEXT
    published = SERVICES["network"]["ports"]
    assert f"127.0.0.1:{settings['broker']['port']}:{settings['broker']['port']}" in published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert settings["zookeeper"]["hosts"].partition(":")[2] in SERVICES["zookeeper"]["healthcheck"]["test"][-1]
