"""The program around `drain.service.service`: it ends without waiting for threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from drain.service.service import main as serve


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serve until a signal, and end the process with the exit code of `drain.service.service.main`."""
    code = serve(argv)
    sys.stdout.flush()
    # Not sys.exit: it would wait for threads, and one may hang in a call to a dead JVM.
    os._exit(code)


if __name__ == "__main__":
    main()
