"""The conformance suite, with the clients in Python and in JavaScript."""

import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.servers.programs import TIMEOUT_FACTOR
from tests.support.source_folders import ROOT

SUITE = ROOT / "clients" / "conformance"
FALSE_DRIVER = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"], "hash": "0", "bucket": "0", "shard": "0", "offset": "1"}), flush=True)
"""
UNABLE = FALSE_DRIVER.replace('"hash": "0",', '"unsupported": json.loads(line)["do"] != "start",')


def run(*arguments: str | Path) -> tuple[int, str]:
    command = sys.executable, "-P", "-m", "clients.conformance", f"--patience={TIMEOUT_FACTOR}", *arguments
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.system
@pytest.mark.timeout(900)
def test_both_clients_pass_every_case(programs: Path) -> None:
    """At the same time: most cases wait."""
    python = sys.executable, str(SUITE / "drivers" / "python_driver.py")
    javascript = "node", shutil.copy(SUITE / "drivers" / "javascript_driver.mjs", programs)
    cases = sum(len(tomllib.loads(path.read_text())["case"]) for path in (SUITE / "cases").glob("*.toml"))

    with ThreadPoolExecutor() as pool:
        for code, out in pool.map(run, ("--", "--"), *zip(python, javascript, strict=True)):
            assert f"{cases} of {cases} cases passed" in out, out
            assert code == 0
            assert "\n-" not in out, "no command is unsupported"


@pytest.mark.system
@pytest.mark.parametrize("case", ["a lost request", "what cannot be stored in time"])
def test_the_clock_of_the_machine_may_be_put_back(case: str, programs: Path) -> None:
    """By an hour, a second after the start of a program in JavaScript: it waits as long as before."""
    jump = "const now = Date.now, began = now(); Date.now = () => now() - 3.6e6 * (now() - began > 1000)"
    driver = shutil.copy(SUITE / "drivers" / "javascript_driver.mjs", programs)

    code, out = run("--case", case, "--", "node", "--import", f"data:text/javascript,{jump}", driver)

    assert code == 0, out


@pytest.mark.system
@pytest.mark.parametrize(
    ("driver", "expected_code", "expected"),
    [
        pytest.param(FALSE_DRIVER, 1, "answer.hash is '0' and should be '1009084850'", id="a false answer fails"),
        pytest.param(UNABLE, 0, "-      producing: hash vectors: no hash", id="what a client has not is left out"),
        pytest.param("", 1, "the driver has ended", id="a driver that ends fails"),
    ],
)
def test_the_suite_judges_a_driver(driver: str, expected_code: int, expected: str, tmp_path: Path) -> None:
    (program := tmp_path / "driver.py").write_text(driver)

    code, out = run("--case", "hash vectors", "--", sys.executable, str(program))

    assert expected_code == code
    assert expected in out


def test_the_page_names_every_command_and_every_step_of_the_cases() -> None:
    page = (ROOT / "docs" / "write-a-client.md").read_text()
    steps = [
        step
        for path in (SUITE / "cases").glob("*.toml")
        for case in tomllib.loads(path.read_text())["case"]
        for step in case["steps"]
    ]

    assert [] == sorted({str(step["do"]) for step in steps if "do" in step and f"`{step['do']}`" not in page})
    fields = {name for step in steps if "do" in step for name in step} - {"do", "as", "expect", "driver", "within"}
    assert [] == sorted(name for name in fields if f"`{name}`" not in page)
