"""The programs of examples/ on a real node: they do what their first lines say, and end cleanly."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import headgate
from controller.local.reserved_port import ReservedPort
from tests.support.servers.node import Node
from tests.support.servers.programs import RunningProgram, get, start, wait_until
from tests.support.source_folders import ROOT

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]
EXAMPLES = ROOT / "examples"
Run = Callable[..., Awaitable[RunningProgram]]
CELERY = """
import os, pathlib, signal
from celery.signals import task_prerun

broker_transport_options = {"data_folder_in": "FOLDER", "data_folder_out": "FOLDER", "control_folder": "FOLDER"}
worker_enable_remote_control = False

@task_prerun.connect
def die(args, **_):
    killed = pathlib.Path("FOLDER/killed")
    if args[1] == 7 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest_asyncio.fixture(loop_scope="session")
async def run(node: Node, tmp_path: Path) -> AsyncIterator[Run]:
    """Start ``python ARGUMENTS…`` with the configuration of the node and a topic; what still runs at the end is killed."""
    started: list[RunningProgram] = []

    async def run(*arguments: str, topic: str, **environ: str) -> RunningProgram:
        paths = map(str, (ROOT / "integrations" / "faststream", ROOT, EXAMPLES / "celery", tmp_path))
        env = {
            **node.env,
            "HEADGATE_CONFIG": str(node.config),
            "PYTHONPATH": ":".join(paths),
            "TOPIC": topic,
            **environ,
        }
        out = tmp_path / f"{len(started)}.out"
        started.append(await start(*arguments, out=out, env=env, cwd=tmp_path, program=()))
        return started[-1]

    yield run
    for program in started:
        await program.kill()


async def stored(node: Node, topic: str) -> list[dict[str, Any]]:
    """Return the values of a topic's records."""
    import polars as pl  # noqa: PLC0415 - a third of a second of each process that collects

    found = await asyncio.to_thread(headgate.dataset, topic, headgate.load_client_config(node.config))
    return [json.loads(value) for value in (await asyncio.to_thread(pl.DataFrame, found))["value"]]


def request(port: int, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    made = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(made, timeout=60) as response:
        return json.load(response)


@pytest.mark.parametrize("program", ["app", "with_faststream"])
async def test_a_web_service_stores_requests_handles_them_and_leaves(node: Node, run: Run, program: str) -> None:
    topic = f"web-{program}"
    await node.commands.succeed("topic", "create", topic, "--segments", "2")
    with ReservedPort() as port:
        options = "--app-dir", str(EXAMPLES / "fastapi"), "--port", str(port.number), f"{program}:app"
        service = await run("-m", "uvicorn", *options, topic=topic)
        await wait_until(lambda: "Uvicorn running on" in service.errors(), service.errors, 60)
        for total in range(1, 11):
            order = {"customer": f"c{total % 2}", "total": total}
            assert (await asyncio.to_thread(request, port.number, "/orders", order))["offset"] >= 0

        async def totals() -> bool:
            return {"c0": 30, "c1": 25} == await asyncio.to_thread(request, port.number, "/totals")

        await wait_until(totals, service.errors)
        scale = json.loads((await get(node.http_address, f"/api/v1/scale/{topic}/totals"))[1])
        assert (2, 1) == (scale["usable_consumers"], scale["connected_consumers"])
        await service.terminate()
    assert "shutdown complete" in service.errors()
    async with headgate.Admin(headgate.load_client_config(node.config)) as admin:
        left = await admin.describe_subscription(topic, "totals")
    assert not left.consumers, "it has left"
    assert {0} == {segment.unacknowledged for segment in left.segments}


async def test_celery_tasks_store_records_also_when_a_forked_worker_is_killed(
    node: Node, run: Run, tmp_path: Path
) -> None:
    await node.commands.succeed("topic", "create", "celery", "--segments", "2")
    (tmp_path / "queue").mkdir()
    (tmp_path / "celery_settings.py").write_text(CELERY.replace("FOLDER", str(tmp_path / "queue")))
    broker = {"topic": "celery", "CELERY_BROKER_URL": "filesystem://", "CELERY_CONFIG_MODULE": "celery_settings"}
    worker = await run("-m", "celery", "--app", "tasks", "worker", "--concurrency", "2", **broker)
    sender = await run("-c", "import tasks; [tasks.store_order.delay('c', n) for n in range(20)]", **broker)
    assert await sender.ended() == 0, sender.errors()

    async def all_stored() -> bool:
        return len(await stored(node, "celery")) == 20

    await wait_until(all_stored, worker.errors, 60)
    assert await worker.terminate() == 0, worker.errors()
    values = await stored(node, "celery")
    assert list(range(20)) == sorted(value["total"] for value in values)
    assert 1 < len({value["process"] for value in values}), "each worker process has a producer of its own"


async def test_the_cells_of_the_notebook_run(node: Node, run: Run) -> None:
    await node.commands.succeed("topic", "create", "notebook", "--segments", "2")
    cells = json.loads((EXAMPLES / "notebook" / "orders.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    notebook = await run("-c", f"{code}\nprint(sums['total'].sum(), len(sums))", topic="notebook")

    assert await notebook.ended(60) == 0, notebook.errors()
    assert ["4950 7"] == notebook.lines()
