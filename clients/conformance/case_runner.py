"""Cases as data: reads them, and plays one against a driver and a server.

A case is a list of steps. A step with ``do`` is a command for the driver, one with ``server`` happens at the server,
and the few others are the suite's own: ``await`` an answer that was not waited for (``as``), see that it is still
``pending``, ``kill`` a driver. ``expect`` names the part of an answer that matters. docs/write-a-client.md has the
tables.
"""

import asyncio
import re
import tomllib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

from clients.conformance.driver import Driver

CASES: Final = Path(__file__).parent / "cases"
STEP_SECONDS: Final = 30.0
BYTES: Final = ("key", "value")
"""Fields that are bytes: text, or ``{hex = "…"}``, either with ``times``. Drivers get and give hexadecimal digits."""

OWN_FIELDS: Final = ("as", "expect", "driver", "within")

Step = dict[str, Any]


class CaseFailedError(Exception):
    """The client, or the driver, did something else than the case says."""


class Server(Protocol):
    """Where a case takes place."""

    async def begin(self) -> dict[str, Any]:
        """Make everything new for a case; return what the driver's ``start`` needs."""

    async def step(self, do: str, step: Step, seconds: float) -> Any:
        """Do something, and return what ``expect`` is compared with; raises CaseFailedError."""

    async def end(self) -> None:
        """End a case; raises CaseFailedError if the client broke a rule that holds always."""


@dataclass(frozen=True)
class Case:
    name: str
    rule: str
    server: str
    steps: list[Step]
    needs: tuple[str, ...] = ()


def load_cases() -> list[Case]:
    """Return every case, in the order of the files."""
    found = ((path.stem, tomllib.loads(path.read_text())) for path in sorted(CASES.glob("*.toml")))
    return [
        Case(**{**case, "name": f"{stem}: {case['name']}", "server": document["server"]})
        for stem, document in found
        for case in document["case"]
    ]


def as_bytes(given: object) -> bytes:
    if isinstance(given, Mapping):
        raw = bytes.fromhex(given["hex"]) if "hex" in given else given["text"].encode()
        return raw * int(given.get("times", 1))
    return str(given).encode()


def plain(given: Any) -> Any:
    """Return a part of a case as a driver gets it: bytes as hexadecimal digits."""
    if isinstance(given, list):
        return [plain(each) for each in given]
    if isinstance(given, dict):
        return {name: as_bytes(value).hex() if name in BYTES else plain(value) for name, value in given.items()}
    return given


def difference(expected: Any, found: Any, at: str = "answer") -> str | None:
    """Return where ``found`` lacks what ``expected`` has; None: nowhere. Lists beside strings: one; a text: a part."""
    if isinstance(expected, dict) and isinstance(found, dict):
        judged = (difference(expected[name], found.get(name), f"{at}.{name}") for name in expected)
        return next(filter(None, judged), None)
    if at == "answer.text":
        return None if expected in found else f"{at} is {found!r} and should contain {expected!r}"
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return f"{at} has {len(found)} elements and should have {len(expected)}: {found!r:.600}"
        pairs = enumerate(zip(expected, found, strict=True))
        return next(filter(None, (difference(one, other, f"{at}[{n}]") for n, (one, other) in pairs)), None)
    if isinstance(expected, list) and isinstance(found, str):
        return None if found in expected else f"{at} is {found!r} and should be one of {expected}"
    if isinstance(found, bytes):
        expected = as_bytes(expected)
    same = str(expected) == found if isinstance(found, str) else expected == found
    return None if same else f"{at} is {found!r:.300} and should be {expected!r:.300}"


async def run_case(case: Case, server: Server, command: list[str], patience: float) -> str | None:
    """Play a case; raises CaseFailedError. Returns the command that the driver does not support, if there is one."""
    start = await server.begin()
    drivers: dict[str, Driver] = {}
    answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.end)

        async def driver(name: str) -> Driver:
            if name not in drivers:
                drivers[name] = await Driver.start(command)
                stack.push_async_callback(drivers[name].kill)
                await answered(drivers[name].send({"do": "start", **start}), STEP_SECONDS * patience, "start")
            return drivers[name]

        for step in case.steps:
            found: Any
            expected: Any
            seconds = (step.get("seconds", 0) + step.get("within", STEP_SECONDS)) * patience
            if "kill" in step:
                await drivers.pop(step["kill"]).kill()
                continue
            if "pending" in step:
                done, _ = await asyncio.wait([answers[step["pending"]]], timeout=step["for"])
                found, expected = {"answered": bool(done)}, {"answered": False}
            elif "server" in step:
                found = await server.step(step["server"], step, seconds)
                expected = step.get("expect")
            elif "await" in step:
                found, expected = await answered(answers[step["await"]], seconds, step), step.get("expect", {})
            else:
                fields = {name: value for name, value in step.items() if name not in OWN_FIELDS}
                answer = begin(await driver(step.get("driver", "main")), _resolved(plain(fields), answers))
                if "as" in step and "expect" not in step:
                    answers[step["as"]] = answer
                    continue
                answers[step.get("as", "last")] = answer
                found, expected = await answered(answer, seconds, step), step.get("expect", {})
            if isinstance(found, dict) and "unsupported" in found:
                return str(step.get("do"))
            _judge(step, expected, found)
    return None


def begin(driver: Driver, command: dict[str, Any]) -> "asyncio.Future[dict[str, Any]]":
    """Send a command; with ``numbered``, so many, one after the other: value n has the key ``key-<n modulo 7>``."""
    if "numbered" not in command:
        return driver.send(command)
    named = [{"key": f"key-{n % 7}", "value": str(n)} for n in range(command.pop("numbered"))]
    sent = [driver.send({**command, **plain(each)}) for each in named]

    async def outcomes() -> dict[str, Any]:
        found = await asyncio.gather(*sent)
        return {"stored": sum("error" not in each for each in found), "last": found[-1]}

    return asyncio.ensure_future(outcomes())


async def answered(answer: "asyncio.Future[dict[str, Any]]", seconds: float, step: object) -> dict[str, Any]:
    try:
        return await asyncio.wait_for(asyncio.shield(answer), seconds)
    except TimeoutError:
        raise CaseFailedError(f"no answer to {step!r:.300} in {seconds:g} s") from None


def _resolved(fields: Any, answers: Mapping[str, "asyncio.Future[dict[str, Any]]"]) -> Any:
    """Put parts of earlier answers in place of texts such as ``$first.positions``."""

    def part(value: object) -> object:
        if not isinstance(value, str) or not re.fullmatch(r"\$\w+\.\w+", value):
            return value
        name, field = value[1:].split(".")
        return answers[name].result()[field]

    return {name: part(value) for name, value in fields.items()}


def _judge(step: Step, expected: Any, found: Any) -> None:
    """Compare an answer: also ``values`` and ``by_key`` of received records. An error that is not expected fails."""
    if isinstance(found, dict) and "error" in found and "error" not in (expected or {}):
        raise CaseFailedError(f"{step!r:.300} ended with {found}")
    if isinstance(expected, dict) and isinstance(found, dict) and "records" in found:
        values = [bytes.fromhex(record["value"]).decode(errors="replace") for record in found["records"]]
        found = {**found, "values": values, "by_key": _by_key(found["records"]), "count": len(values)}
        numbers = [[int(value) for value in of_key if value.isdigit()] for of_key in found["by_key"].values()]
        found["rising"] = all(all(a < b for a, b in pairwise(each)) for each in numbers)
    problem = None if expected is None else difference(plain(expected), found)
    if problem is not None:
        raise CaseFailedError(f"{step!r:.300}: {problem}")


def _by_key(records: list[dict[str, Any]]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for record in records:
        key, value = (bytes.fromhex(record[name]).decode(errors="replace") for name in BYTES)
        values.setdefault(key, []).append(value)
    return values
