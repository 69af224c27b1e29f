"""Some seconds of the hostile client of the benchmark: the whole hour is ``python -m bench hostile_client``."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.support.servers.programs import TEST_SECONDS

pytestmark = [pytest.mark.security, pytest.mark.nightly, pytest.mark.timeout(TEST_SECONDS)]

ROOT = Path(__file__).parents[2]
SECONDS = 10
MAX_RATIO = 50.0
"""A short attack is dense, and CI is busy: only honest users that are shut out exceed this."""


async def test_a_hostile_client_costs_honest_users_nothing_but_time() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench", "hostile_client", "--json", "--seconds", str(SECONDS)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    result = json.loads(out)
    parts = result["parts"]

    assert (0, 0, 0, 0) == tuple(parts[fault] for fault in ("lost", "repeated", "reordered", "forged")), parts
    assert result["value"] <= MAX_RATIO, parts
    assert parts["kinds"] > 100
    assert parts["records"] > 0
