"""One real Spark session for all tests of this room: a JVM takes 5 s to start."""

from __future__ import annotations

from pathlib import Path

import pytest

from drain.session import build_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("spark")
    session = build_session(
        master="local[1]",
        wrapper_folder=folder / "java",
        extra={
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.sql.shuffle.partitions": "1",
            "spark.local.dir": str(folder / "scratch"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    yield session
    session.stop()
