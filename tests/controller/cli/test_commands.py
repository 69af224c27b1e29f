"""The commands that the daemon's distribution adds to `headgate`."""

import subprocess
import sys

import pytest

from tests.headgate.cli.conftest import Invoke


def test_help_imports_none_of_them() -> None:
    code = (
        "import sys\nfrom headgate.cli.main import main\n"
        "try: main(['--help'], prog_name='headgate')\nexcept SystemExit: pass\n"
        "of_the_daemon = ('controller', 'coordinator', 'drain', 'metrics', 'shard', 'web')\n"
        "print(*sorted(name for name in sys.modules if name.partition('.')[0] in of_the_daemon), file=sys.stderr)"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "\n" == result.stderr


@pytest.mark.parametrize(
    ("words", "message"), [(("check-config",), "Missing option '--config'"), (("run",), "Missing option '--config'")]
)
def test_wrong_usage_is_one_line_and_exit_code_2(words: tuple[str, ...], message: str, invoke: Invoke) -> None:
    result = invoke(*words)

    assert 2 == result.exit_code
    assert result.stderr.startswith("headgate: ")
    assert 1 == result.stderr.count("\n")
    assert message in result.stderr
