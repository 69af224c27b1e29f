"""One Spark session for all tests in this package: a JVM takes 5 s to start.

``--engine`` selects the engine: a JVM of this process, a standalone cluster, or a Spark Connect
server. The last two are started once, and run the tests marked ``engines``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from drain.spark.session import build_session
from tests.support.servers import spark_servers
from tests.support.servers.class_archive import SMALL_JVM, archive_options
from tests.support.servers.s3_server import S3Server, s3_server


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> str:
    return request.config.getoption("--engine")


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server. Processes that are started later find it in their environment."""
    with s3_server() as server, pytest.MonkeyPatch.context() as patched:
        for name, value in server.environment().items():
            patched.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def spark_master(engine: str, s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if engine == "local":
        yield "local[1]"
        return
    folder = tmp_path_factory.mktemp("spark-servers")
    with (spark_servers.standalone if engine == "standalone" else spark_servers.connect)(folder) as master:
        yield master


@pytest.fixture(scope="session")
def spark(spark_master: str, engine: str, tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.extraJavaOptions": SMALL_JVM,
        "spark.executor.extraJavaOptions": f"{SMALL_JVM} {archive_options()}",
        "spark.executor.memory": "700m",
        "spark.sql.shuffle.partitions": "1",
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    session = build_session(
        master=spark_master, wrapper_folder=folder / "java", extra=settings if engine != "connect" else None
    )
    yield session
    session.stop()
