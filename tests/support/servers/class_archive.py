"""An archive of the classes that Spark loads, for the many JVMs of the tests: each starts with half the processor time.

    python -m tests.support.servers.class_archive

writes `ARCHIVE` from a JVM that warms up as the drain service does. A JVM with other classes or of another version
ignores the archive, and so does everything here while there is none. headgate itself uses none: a user starts one JVM
and keeps it for months.
"""

import os
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(__file__).parents[3] / "build/spark-classes.jsa"
SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
WITHOUT_WARNINGS = "-Xlog:disable -Xlog:all=error:stderr"
"""Of a JVM that cannot use the archive."""


def archive_options(archive: Path = ARCHIVE) -> str:
    """Return the options of a JVM that uses the archive; empty if there is none."""
    return f"-XX:SharedArchiveFile={archive} {WITHOUT_WARNINGS}" if archive.exists() else ""


def use_archive() -> None:
    """Make the JVMs that `spark-submit` starts below this process use the archive, if there is one."""
    if options := archive_options():
        os.environ.setdefault("SPARK_SUBMIT_OPTS", options)


def write_archive(archive: Path) -> None:
    """Write the archive; takes half a minute."""
    # tests/conftest.py imports this module, also where no test needs Spark.
    from drain.service.warmup import warm_up  # noqa: PLC0415
    from drain.spark.session import build_session  # noqa: PLC0415

    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        draft = Path(folder, archive.name)
        session = build_session(
            master="local[1]",
            wrapper_folder=Path(folder, "java"),
            extra={
                "spark.driver.extraJavaOptions": f"{SMALL_JVM} -XX:ArchiveClassesAtExit={draft} {WITHOUT_WARNINGS}",
                "spark.local.dir": str(Path(folder, "scratch")),
                "spark.sql.warehouse.dir": str(Path(folder, "warehouse")),
            },
        )
        warm_up(session, lambda _: None)
        # The JVM writes the archive when it ends.
        process = session.sparkContext._gateway.proc
        session.stop()
        process.stdin.close()
        assert process.wait(timeout=240) == 0
        draft.replace(archive)


if __name__ == "__main__":
    write_archive(ARCHIVE)
    sys.stdout.write(f"wrote {ARCHIVE}\n")
