"""The command line as a whole: help, one-line errors, exit codes, import time."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner

from headgate.cli.main import main
from headgate.errors import CommandUnknownError, HeadgateError, NoLeaderError
from tests.headgate.cli.conftest import Invoke
from tests.headgate.cli.records.test_producer import info
from tests.support.fakes.cli_client import FakeAdmin, FakeCluster, InProcessContext, segment, subscription, topic


def test_help_imports_no_library_that_only_some_commands_need():
    heavy = "asyncio msgspec pyarrow obstore aiomqtt kazoo pyspark rich aiohttp structlog textual"
    of_the_daemon = "controller coordinator drain metrics shard web"
    code = (
        "import sys\nfrom headgate.cli.main import main\n"
        "try: main(['--help'], prog_name='headgate')\nexcept SystemExit: pass\n"
        f"loaded = {{name.partition('.')[0] for name in sys.modules}}\n"
        f"print(sorted({{*'{heavy} {of_the_daemon}'.split()}} & loaded), file=sys.stderr)"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stderr == "[]\n"


def test_until_ctrl_c_has_its_meaning_nothing_is_imported_that_takes_time():
    """Before that, Python prints a traceback. `signal` needs enum, and what that needs."""
    code = (
        "import signal, sys; before = {*sys.modules}; import headgate.__main__; print(sorted({*sys.modules} - before))"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout == "['headgate', 'headgate.__main__']\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("topik",), "No such command 'topik'. Did you mean 'topic'? See: headgate --help"),
        (("chek-config",), "No such command 'chek-config'. Did you mean 'check-config'? See: headgate --help"),
        (("xyz",), "No such command 'xyz'; see: headgate --help"),
        (("check-config",), "Missing option '--config'"),
        (("run",), "Missing option '--config'"),
        (("topic", "create", "orders", "--segments", "0"), "0 is not in the range 1<=x<=1024"),
        (("consume", "orders"), "Missing argument 'SUBSCRIPTION'"),
        (("consume", "orders", "x", "--type", "pull"), "'pull' is not one of 'stream', 'checkpoint', 'queue'"),
        (("produce", "orders"), "--key-field FIELD"),
        (("produce", "orders", "--key", "a", "--key-field", "b"), "--key-field FIELD"),
        (("produce", "orders", "--key", "a", "--name", "n"), "exactly one FILE"),
        (("produce", "orders", "--key", "a", "--timestamp-unit", "s"), "--timestamp-unit requires --timestamp-field"),
        (("read", "orders", "--base64"), "--base64 requires --key"),
        (("events", "--since", "earliest", "--tail", "5"), "--tail requires no --since"),
        (("subscription", "dead-letters", "orders", "x", "--yes"), "require --replay or --drop"),
        (("subscription", "set", "orders", "x", "--max-deliveries", "-1"), "-1 is not in the range 0<=x<=1000"),
        (("subscription", "set", "orders", "x"), "give at least one option to set"),
        (("subscription", "seek", "orders", "x", "--to", "3=1200"), "or latest; one segment: --position 3=1200"),
        (("up", "--data", ""), "Invalid value for '--data': it is empty: is a variable of your script not set?"),
        (("up", "--ledger", ""), "Invalid value for '--ledger': it is empty"),
        (("deploy-files", ""), "Invalid value for 'FOLDER': it is empty"),
        (("ledger", "copy", "file:///ledger", ""), "Invalid value for 'DESTINATION': it is empty"),
        (("export", "orders", "", "--to", "parquet"), "Invalid value for 'TABLE': it is empty"),
        (("--config", "", "topic", "list"), "Invalid value for '--config': it is empty"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: tuple[str, ...], message: str, invoke: Invoke, cluster: FakeCluster
):
    result = invoke(*words)

    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert result.stderr.startswith("headgate: ")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "error", "code"),
    [
        (("topic", "list"), "no reply; unknown outcome", 3),
        (("topic", "list", "--bogus"), "No such option '--bogus'; see: headgate topic list --help", 2),
        (("topic", "delte"), "No such command 'delte'. Did you mean 'delete'? See: headgate topic --help", 2),
    ],
    ids=["of the cluster", "a wrong option", "a wrong command"],
)
def test_an_error_is_a_line_and_with_json_it_is_json(
    words: tuple[str, ...], error: str, code: int, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    """An unknown outcome has an exit code of its own."""
    lost = AsyncMock(side_effect=CommandUnknownError("no reply; unknown outcome"))
    monkeypatch.setattr(FakeAdmin, "list_topics", lost)

    result = invoke(*words, "--json")

    assert (code, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert json.loads(result.stderr) == {"error": error, "exit_code": code}
    result = invoke(*words)
    assert (code, f"headgate: {error}\n") == (result.exit_code, result.stderr)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NoLeaderError("shard 3 has no leader; see that a daemon runs"), "headgate: shard 3 has no leader; see that a"),
        (ExceptionGroup("tasks", [ValueError("x"), HeadgateError("two\nlines")]), "headgate: two lines\n"),
        (FileNotFoundError(2, "No such file or directory", "x.json"), "headgate: x.json: No such file or directory\n"),
        (MemoryError(), "headgate: out of memory: this process reached its limit"),
        (ExceptionGroup("tasks", [RuntimeError("can't start new thread")]), "headgate: no new thread: this process"),
        (OverflowError("timestamp too large to convert to C _PyTime_t"), "headgate: the clock of this machine is"),
        (OverflowError("int too big to convert"), "headgate: internal error: OverflowError: int too big to convert"),
        (ZeroDivisionError("oops"), "headgate: internal error: ZeroDivisionError: oops (run headgate --debug … for a"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(
    error: Exception, message: str, invoke: Invoke, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(FakeAdmin, "list_topics", AsyncMock(side_effect=error))

    result = invoke("topic", "list")

    assert (1, 1) == (result.exit_code, result.stderr.count("\n"))
    assert result.stderr.startswith(message)


def test_debug_prints_a_traceback(invoke: Invoke, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FakeAdmin, "list_topics", AsyncMock(side_effect=HeadgateError("no")))

    result = invoke("--debug", "topic", "list")

    assert "Traceback" in result.stderr
    assert result.stderr.endswith("headgate: no\n")


@pytest.mark.parametrize("words", [("--config", "x.toml", "topic", "list"), ("topic", "list", "--config", "x.toml")])
def test_config_is_accepted_before_and_after_the_command(
    words: tuple[str, ...], invoke: Invoke, context: InProcessContext
):
    assert invoke(*words).exit_code == 0
    assert str(context.config) == "x.toml"


@pytest.mark.parametrize("module", ["headgate.cli.main", "click.core", "headgate.cli.cluster.status", "asyncio"])
def test_ctrl_c_while_a_module_is_imported_ends_the_command_without_a_traceback(module: str):
    code = f"""
import os, runpy, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # The tests may run in the background of a shell.
sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["status"]
runpy.run_module("headgate", run_name="__main__")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (130, "", "") == (result.returncode, result.stdout, result.stderr)


def test_the_version_is_printed(invoke: Invoke):
    assert invoke("--version").stdout.startswith("headgate 0.")


PROGRAM = """
import sys
from headgate.cli.main import main
from tests.support.fakes.cli_client import FakeCluster, FakeContext, Record, segment, topic

cluster = FakeCluster()
cluster.topics["orders"] = topic("orders", segment(0, 0, 65535))
cluster.records = [Record(b"a", b"x", 0, 0)]
main(sys.argv[1:], prog_name="headgate", obj=FakeContext(cluster))
"""


def run_in_bash(command: Sequence[str], streams: str, **given: Any) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-c", f'exec "$@" {streams}', "bash", sys.executable, "-c", PROGRAM, *command]
    return subprocess.run(words, capture_output=True, text=True, check=False, **given)


@pytest.mark.parametrize(
    "command",
    [("topic", "list"), ("topic", "list", "--json"), ("consume", "orders", "billing", "--exit-when-caught-up")],
    ids=["a table", "JSON", "records"],
)
@pytest.mark.parametrize(
    ("output", "code", "message"),
    [
        (">&{pipe}", 141, ""),
        (">/dev/full", 1, "standard output: No space left on device"),
        (">&-", 1, "standard output is closed: name a file or /dev/null for it"),
    ],
    ids=["a pipe without a reader", "a full disk", "none"],
)
def test_output_that_cannot_be_written_ends_each_command_alike(
    command: tuple[str, ...], output: str, code: int, message: str, pytestconfig: pytest.Config
):
    reader, writer = os.pipe()
    os.close(reader)

    result = run_in_bash(command, output.format(pipe=writer), cwd=pytestconfig.rootpath, pass_fds=[writer])
    os.close(writer)

    assert (code, bool(message)) == (result.returncode, result.stderr.count("\n"))
    assert message in result.stderr


@pytest.mark.parametrize(
    ("command", "streams", "code", "text"),
    [
        ("produce orders --key a --raw", "<&-", 1, "standard input is closed: name a file or /dev/null for it"),
        ("topic delete orders", "<&-", 2, "there is no terminal to ask: add --yes"),
        ("topic list", "<&- 2>&-", 0, "orders"),
        ("topic describe orders", "", 0, "0000 \\u251c"),
    ],
)
def test_closed_streams_and_a_terminal_without_utf_8_are_no_internal_error(
    command: str, streams: str, code: int, text: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    result = run_in_bash(command.split(), streams, cwd=pytestconfig.rootpath)

    assert (code, True) == (result.returncode, text in result.stdout + result.stderr)


# Shell completion of names, as the script of bash asks for it.


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    """Two topics, a subscription of each, and a producer."""
    cluster.topics = {name: topic(name, segment(0, 0, 0xFFFF)) for name in ("orders", "returns")}
    cluster.subscriptions += [subscription("orders", "billing"), subscription("returns", "audit")]
    cluster.producers = [info("import-1", shard=0), info("import-1", shard=3)]
    return cluster


def completions(context: InProcessContext, line: str) -> tuple[list[str], str]:
    """Return the completions of the last word of ``line``, and what is on standard error."""
    given = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_HEADGATE_COMPLETE": "bash_complete"}
    result = CliRunner().invoke(main, [], prog_name="headgate", obj=context, env=given)
    assert not isinstance(result.exception, Exception)
    return [each.partition(",")[2] for each in result.stdout.splitlines() if each], result.stderr


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("headgate read ", ["orders", "returns"]),
        ("headgate topic describe o", ["orders"]),
        ("headgate produce x", []),
        ("headgate consume orders ", ["billing"]),
        ("headgate backlog returns ", ["audit"]),
        ("headgate subscription delete orders b", ["billing"]),
        ("headgate subscription seek returns ", ["audit"]),
        ("headgate consumer list returns ", ["audit"]),
        ("headgate consumer evict orders billing ", ["reader-1"]),
        ("headgate explain orders billing --consumer r", ["reader-1"]),
        ("headgate explain orders --consumer r", []),
        ("headgate producer delete ", ["import-1"]),
        ("headgate topic create ", []),
    ],
)
def test_names_are_completed(line: str, names: list[str], context: InProcessContext, orders: FakeCluster):
    assert (names, "") == completions(context, line)


@pytest.mark.parametrize("error", [NoLeaderError("no broker"), TimeoutError()], ids=repr)
def test_a_cluster_that_does_not_answer_has_no_names_and_prints_nothing(
    error: Exception, context: InProcessContext, orders: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(FakeAdmin, "list_topics", AsyncMock(side_effect=error))

    assert ([], "") == completions(context, "headgate read ")
