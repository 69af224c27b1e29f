"""`make setup` on a machine that lacks something: one line, before anything long begins."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = (
    "Makefile",
    "preflight.py",
    "pyproject.toml",
    "constraints.txt",
    "constraints-build.txt",
    "daemon/pyproject.toml",
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what `make setup` reads before it installs."""
    folder = tmp_path / "clone"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def setup(folder: Path, *variables: str, **environment: str) -> str:
    """Run `make setup`, which must fail; return the one line that it prints besides make's own."""
    # `make test` hands its own level and options to each make below it, which then prints "make[1]".
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--no-print-directory", "setup", *variables],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=inherited | environment,
    )
    assert 0 != done.returncode
    (line,) = [each for each in done.stderr.splitlines() if not each.startswith("make: ")]
    return line


def python(folder: Path, code: str) -> str:
    """Return a Python for `make setup` that runs ``code`` first."""
    program = folder / "python"
    program.write_text(
        f"#!{sys.executable}\nimport runpy, sys\n{code}\nsys.argv[:1] = []\n"
        "sys.path[0] = '.'\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    program.chmod(0o755)
    return f"PYTHON={program}"


def test_no_python(clone: Path) -> None:
    line = setup(clone, "PYTHON=python3.99")

    assert "headgate: 'python3.99' is not installed: apt-get install python3 python3-venv" == line


@pytest.mark.parametrize("place", ["", "tmp"], ids=["environment", "temporary files"])
def test_too_little_disk(place: str, clone: Path) -> None:
    (clone / "tmp").mkdir()
    code = (
        "import shutil, types\n"
        f"shutil.disk_usage = lambda path: types.SimpleNamespace(free=12_000_000 if str(path) == {str(clone / place)!r} else 1 << 40)"
    )

    line = setup(clone, python(clone, code), TMPDIR=str(clone / "tmp"))

    assert line.startswith(f"headgate: {clone / place} has 12 MB free, and ")
    assert "free space, or " in line


def test_a_folder_that_cannot_be_written(clone: Path) -> None:
    """A test that runs as root can write everywhere, so the file system refuses."""
    code = (
        "import tempfile\n"
        "def refuse(dir): raise OSError(30, 'Read-only file system')\n"
        "tempfile.gettempdir()\n"
        "tempfile.TemporaryFile = refuse"
    )

    line = setup(clone, python(clone, code))

    assert f"headgate: {clone} is not writable (Read-only file system): clone headgate into a folder of yours" == line


@pytest.mark.system  # creates an environment with pip
def test_no_network(clone: Path) -> None:
    line = setup(
        clone,
        f"PYTHON={sys.executable}",
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_FIND_LINKS="",
        PIP_NO_CACHE_DIR="1",
    )

    assert line.startswith(
        "headgate: no package could be downloaded: check the network, or name a mirror with PIP_INDEX_URL"
    )
    assert not (clone / ".venv" / ".installed").exists()
