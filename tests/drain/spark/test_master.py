"""Engines of Spark masters, and rejected settings."""

import pytest

from drain.setting_values import conf_pair, conf_problem, engine_of, is_on_this_machine
from headgate.errors import ConfigError


@pytest.mark.parametrize(
    ("master", "engine", "here"),
    [
        ("local", "local", True),
        ("local[*]", "local", True),
        ("local[2]", "local", True),
        ("local[2,3]", "local", True),
        ("spark://127.0.0.1:7077", "cluster", True),
        ("spark://localhost:7077", "cluster", True),
        ("spark://spark.example:7077", "cluster", False),
        ("spark://127.0.0.1:7077,other:7077", "cluster", False),
        ("yarn", "cluster", False),
        ("k8s://https://10.0.0.1:6443", "cluster", False),
        ("sc://localhost", "connect", True),
        ("sc://[::1]:15002", "connect", True),
        ("sc://spark.example:15002/;use_ssl=true;user_id=headgate", "connect", False),
    ],
)
def test_a_master_names_an_engine(master: str, engine: str, here: bool) -> None:
    assert engine_of(master) == engine
    assert is_on_this_machine(master) is here


@pytest.mark.parametrize(
    "master",
    ["", "Local[*]", "local[0]", "local[]", "spark:host:7077", "spark://host", "sc://", "mesos://h:1", "http://h"],
)
def test_an_invalid_master_is_rejected_with_the_valid_ones(master: str) -> None:
    with pytest.raises(ConfigError, match=r"local\[\*\], .*spark://host:port, .* or sc://host:port"):
        engine_of(master)


def test_a_token_in_the_master_is_rejected_and_not_printed() -> None:
    with pytest.raises(ConfigError, match="SPARK_CONNECT_AUTHENTICATE_TOKEN") as caught:
        engine_of("sc://host:15002/;token=hush")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("executor.memory", "not a setting of Spark"),
        ("spark.master", r"drain\.master"),
        ("spark.remote", r"drain\.master"),
        ("spark.hadoop.fs.s3a.secret.key", "process list"),
        ("spark.hadoop.fs.s3a.access.key", "process list"),
        ("spark.connect.authenticate.token", "process list"),
        ("spark.ssl.keyPassword", "process list"),
    ],
)
def test_a_setting_that_may_not_be_passed_on_is_rejected(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        conf_pair(f"{name}=1")


def test_other_settings_are_accepted() -> None:
    assert conf_problem("spark.executor.memory") is None
    assert conf_pair("spark.executor.extraJavaOptions=-Da=b") == ("spark.executor.extraJavaOptions", "-Da=b")
    with pytest.raises(ValueError, match="not KEY=VALUE"):
        conf_pair("spark.executor.memory")
