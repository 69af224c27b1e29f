"""What the package headgate has, and what only headgate-spark has."""

import re
from importlib import metadata

from tests.support.source_folders import ROOT


def needs(name: str) -> set[str]:
    """Return the packages that a package requires on this machine, without extras."""
    required = [each.partition(";") for each in metadata.requires(name) or []]
    return {
        re.match(r"[\w.-]+", package).group().lower().replace("_", "-")  # type: ignore[union-attr]
        for package, _, condition in required
        if "extra" not in condition and "python_version <" not in condition
    }


def test_what_only_spark_needs_is_in_its_package() -> None:
    """pandas and numpy are 145 MB, and a daemon imports neither."""
    found = re.search(r"of_spark='([^']+)'", (ROOT / "debian" / "build").read_text())
    of_spark = set(found[1].split("|"))
    pins = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==", (ROOT / "constraints-daemon.txt").read_text(), re.MULTILINE)
    others = {name.lower() for name in pins} - of_spark

    wanted = of_spark & set().union(*map(needs, others))
    assert not wanted, "what the daemon needs as well is not only of Spark"
    spark, queue = set[str](), {"pyspark", "pandas"}
    while queue:
        spark |= queue
        queue = set().union(*map(needs, queue)) - spark
    assert spark == of_spark
