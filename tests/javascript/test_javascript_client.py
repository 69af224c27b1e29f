"""The package of the client in JavaScript; test_conformance.py and test_javascript_consumer.py run it."""

import re
import subprocess
from pathlib import Path
from zlib import crc32

import msgspec
import polars as pl
import pytest

from headgate.ledger import checksum
from headgate.ledger.compacted import FORMAT
from tests.support.source_folders import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


def test_the_lock_file_names_no_registry_host() -> None:
    lock = (ROOT / "clients" / "javascript" / "package-lock.json").read_text()

    assert "integrity" in lock
    assert "resolved" not in lock
    assert "://" not in lock


def compiled(programs: Path, *options: str) -> list[str]:
    """Return what TypeScript says."""
    tsc = programs.parent / "node_modules" / "typescript" / "bin" / "tsc"
    command = "node", tsc, "--noEmit", "--module", "nodenext", "--target", "es2022", *options
    return subprocess.run(command, cwd=programs, capture_output=True, check=False).stdout.decode().splitlines()


def test_the_types_describe_the_package(programs: Path) -> None:
    assert [] == compiled(programs, "--strict", "typed.mts")


def test_no_name_is_unknown_and_no_member_of_a_class_hides_another_one(programs: Path) -> None:
    sources = map(str, (programs.parent / "node_modules" / "@headgate" / "client" / "src").glob("*.mjs"))
    found = compiled(programs, "--allowJs", "--checkJs", "--skipLibCheck", *sources)

    assert any("TS2339" in each for each in found), "it has read the sources"
    assert [] == [each for each in found if "TS2300" in each or "TS2304" in each]


INTERNALS = re.findall(r'^prints\("(.+?)"', Path(__file__).with_name("internals.mjs").read_text(), re.MULTILINE)
RECORDS = 200_000


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a compacted object that has more records than a call in JavaScript may have arguments."""
    folder = tmp_path_factory.mktemp("ledger")
    numbers, path = pl.arange(RECORDS, eager=True, dtype=pl.Int64), folder / "object.parquet"
    rows = {"offset": numbers, "timestamp_ms": numbers, "key": [b"k"] * RECORDS, "value": [b"v"] * RECORDS}
    pl.DataFrame(rows).write_parquet(path)
    item = {"path": path.name, "topic_id": 1, "segment": 0, "checksum": crc32(path.read_bytes())}
    manifest = {"format": FORMAT, "ledger_id": "a", "objects": [item]}
    (folder / "manifests" / "shard=0000").mkdir(parents=True)
    sealed = checksum.seal_json(msgspec.json.encode(manifest))
    (folder / "manifests" / "shard=0000" / f"{1:012}-{1:012}.json").write_bytes(sealed)
    return folder


@pytest.mark.parametrize("program", INTERNALS)
def test_a_program_that_uses_the_inside_of_the_client_prints(program: str, programs: Path, compacted: Path) -> None:
    command = "node", "internals.mjs", program, compacted
    done = subprocess.run(command, cwd=programs, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
