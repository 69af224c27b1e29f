"""Code blocks of documents: how they are read, and that each is run, or says why not."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents.markdown import FENCE, ROOT, RUNNABLE, Block, blocks
from tests.support.servers.programs import TEST_SECONDS

ATTRIBUTES = {"no-run", "file", "exit", "terminal"}
REASONS = {
    "needs systemd": "the units are checked in tests/deploy",
    "needs a ledger in a bucket": "tests/system/test_operations.py runs it in folders",
    "needs root": "it writes below /etc, or installs packages",
    "needs a container engine": "tests/deploy/test_containers.py checks the files",
    "needs a deployment": "tests/deploy/test_secure_deployment.py runs it, in another folder",
    "needs a Kinesis stream": "its types are checked; tests/system/test_kinesis.py runs one on a server of npm",
    "waits for records without end": "its types are checked; docs/clients.md has one that ends, and runs",
    "needs AWS": "tests/system/test_kinesis.py uses a server of npm",
    "needs other machines": "it names servers of a cluster",
    "installs packages": "`make` installs them in CI",
    "names the port of a node": "tests/system/test_devices.py publishes to a node on a free port",
    "needs a ledger": "tests/headgate/ledger/test_ledger_document.py runs it on one",
    "takes minutes": "the demo, the benchmarks and chaos runs have tests of their own",
    "starts a second node": "tests in tests/system start nodes of this kind",
    "an excerpt": "it is not a complete program: only its syntax is checked",
}
"""Why a block may be excluded, and where its content is tested."""
EXCERPTS = {"an excerpt", "needs a ledger"}
"""Reasons of blocks that use names which they do not define, so that types cannot be checked."""
BLOCKS = [block for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) for block in blocks(path)]
PROGRAMS = [block for block in BLOCKS if block.language == "python"]


def test_attributes_and_reasons_are_known() -> None:
    """`REASONS` lists what no test runs."""
    assert [] == [f"{block}: {set(block.attributes)}" for block in BLOCKS if not set(block.attributes) <= ATTRIBUTES]
    assert [] == [str(block) for block in BLOCKS if block.attributes and block.language not in RUNNABLE]
    reasons = [(str(block), block.attributes["no-run"]) for block in BLOCKS if "no-run" in block.attributes]
    assert [] == [(block, reason) for block, reason in reasons if reason not in REASONS]


def test_every_command_of_a_document_is_in_a_block_that_says_whether_it_runs() -> None:
    """A block without a fence says nothing, and one without language neither."""
    indented = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        for line in re.findall(
            r"^ {4,}(?:headgate|python|make|curl|aws|systemctl|umask) .*$",
            FENCE.sub("", path.read_text()),
            re.MULTILINE,
        )
    ]
    assert [] == indented
    assert [] == [str(block) for block in BLOCKS if not block.language and re.search(r"^(\$ )?headgate ", block.text)]


def test_a_saved_program_is_run_by_a_command() -> None:
    saved = {(block.document, block.attributes["file"]) for block in PROGRAMS if "file" in block.attributes}
    used = {
        (block.document, name)
        for block in BLOCKS
        if block.language == "console"
        for name in re.findall(r"[\w-]+\.py", block.text)
    }

    assert saved <= used


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_compiles(block: Block) -> None:
    is_excerpt = block.attributes.get("no-run") in EXCERPTS
    compile(block.text, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if is_excerpt else 0, dont_inherit=True)


@pytest.mark.system  # runs mypy
def test_programs_have_correct_types(tmp_path: Path) -> None:
    """With the settings of `make lint`, whose cache makes it fast."""
    for block in PROGRAMS:
        if block.attributes.get("no-run") not in EXCERPTS:
            name = re.sub(r"\W", "_", f"{block.document}_{block.line}")
            (tmp_path / f"{name}.py").write_text(block.text)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *map(str, tmp_path.iterdir())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TEST_SECONDS,
        check=False,
    )
    assert 0 == checked.returncode, checked.stdout
