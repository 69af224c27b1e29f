"""``python -m clients.conformance -- node driver.mjs``: run the cases against a driver. Exit code 1: a case failed."""

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from clients.conformance.case_runner import Case, CaseFailedError, load_cases, run_case
from clients.conformance.real_cluster import RealServer
from clients.conformance.scripted_leader import ScriptedServer


async def run_cases(cases: list[Case], command: list[str], patience: float, folder: Path) -> int:
    """Run ``cases``; return how many failed. Most only wait, so three scripted servers and the real one run at once."""
    failed = 0

    async def run(kind: type[ScriptedServer | RealServer], first: int = 0, step: int = 1) -> None:
        nonlocal failed
        if not (chosen := [case for case in cases if case.server == kind.name][first::step]):
            return
        needs = {need for case in chosen for need in case.needs}
        async with kind(folder / f"{kind.name}{first}", needs=needs) as server:
            for case in chosen:
                try:
                    left_out = await run_case(case, server, command, patience)
                    print(f"{'-' if left_out else 'ok':7}{case.name}" + (f": no {left_out}" if left_out else ""))
                except CaseFailedError as error:
                    failed += 1
                    print(f"FAILED {case.name}: {case.rule}\n       {error}")
                sys.stdout.flush()

    await asyncio.gather(*(run(ScriptedServer, number, 3) for number in range(3)), run(RealServer))
    return failed


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m clients.conformance", description=__doc__)
    parser.add_argument("--case", action="append", default=[], metavar="TEXT", help="only cases whose name has TEXT")
    parser.add_argument("--list", action="store_true", help="list the cases and end")
    parser.add_argument("--scripted", action="store_true", help="only cases with the scripted leader: seconds, no Java")
    parser.add_argument("--patience", type=float, default=1.0, help="factor on every deadline, for slow machines")
    parser.add_argument("command", nargs="*", help="the driver, after --")
    options = parser.parse_args()
    cases = [case for case in load_cases() if not options.case or any(text in case.name for text in options.case)]
    cases = [case for case in cases if not options.scripted or case.server == ScriptedServer.name]
    if options.list:
        print("\n".join(f"{case.name}: {case.rule}" for case in cases))
        return 0
    if not options.command or not cases:
        parser.error("name a driver after --" if cases else "no case has such a name")
    if shutil.which(options.command[0]) is None:
        parser.error(f"the driver cannot be started: there is no program {options.command[0]!r}")
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        failed = asyncio.run(run_cases(cases, options.command, options.patience, Path(folder)))
    print(f"{len(cases) - failed} of {len(cases)} cases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
