"""The access file: what it may contain, and what its errors name."""

import math
from pathlib import Path

import pytest

from controller.access.file import MAX_FILE_BYTES, read_access_file
from headgate.errors import ConfigError
from shard.access.quotas import DEFAULT_LIMITS, UNLIMITED
from shard.access.rules import OPEN, Right, Role

ROOT = Path(__file__).resolve().parents[3]


def write(folder: Path, text: str) -> Path:
    path = folder / "access.toml"
    path.write_text(text, "utf-8-sig")
    return path


def test_a_user_has_one_right_per_table(tmp_path: Path) -> None:
    text = """
        [[users.shop]]
        role = "producer"
        topics = ["orders", "cart-*"]
        [[users.shop]]
        role = "consumer"
        topics = ["refunds"]
        subscriptions = ["shop"]
        [[users.alice]]
        role = "administrator"
    """
    rules = read_access_file(write(tmp_path, text))

    assert rules.users == {
        "shop": (Right(Role.PRODUCER, ("orders", "cart-*")), Right(Role.CONSUMER, ("refunds",), ("shop",))),
        "alice": (Right(Role.ADMINISTRATOR),),
    }
    assert not rules.is_open


def right(text: str) -> str:
    return f"[[users.shop]]\n{text}\n"


def quota(text: str, table: str = "") -> str:
    users = right("role = 'producer'") + "[[users.gateway]]\nrole = 'device'\n"
    return f"{users}[quotas{table}]\n{text}\n"


def test_a_quota_of_the_user_comes_before_that_of_its_roles_and_the_default(tmp_path: Path) -> None:
    text = """
        [[users.shop]]
        role = "producer"
        [[users.shop]]
        role = "consumer"
        [[users.billing]]
        role = "consumer"
        [[users.grafana]]
        role = "observer"
        [quotas]
        topics = 5
        requests_per_second = 100
        [quotas.roles.consumer]
        requests_per_second = 50
        consumers = 7
        [quotas.roles.producer]
        requests_per_second = 60
        [quotas.users.shop]
        consumers = "unlimited"
    """
    rules = read_access_file(write(tmp_path, text))
    default = DEFAULT_LIMITS.changed({"topics": 5, "requests_per_second": 100})

    assert rules.default_limits == rules.limits_of("grafana") == rules.limits_of("unknown") == default
    assert default.changed({"requests_per_second": 50, "consumers": 7}) == rules.limits_of("billing")
    assert default.changed({"requests_per_second": 60, "consumers": math.inf}) == rules.limits_of("shop")


def test_without_quotas_the_defaults_apply_and_without_access_control_none(tmp_path: Path) -> None:
    assert DEFAULT_LIMITS == read_access_file(write(tmp_path, right("role = 'producer'"))).limits_of("shop")
    assert UNLIMITED == OPEN.limits_of("shop")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("users = 1", "$.users: expected `object`, got `int`"),
        ("", '$.users: this setting is required; write for example [[users.shop]] role = "producer"'),
        ("[users.shop]\nrole = 'producer'", "a right is a table [[users.NAME]]"),
        (right("role = 'boss'"), 'shop[0].role: invalid enum value \'boss\'; use "device" or "producer" or'),
        (right("topics = ['a']"), "$.users.shop[0].role: this setting is required"),
        (right("role = 'producer'\ntopic = 'a'"), "$.users.shop[0].topic: unknown setting; did you mean topics?"),
        (right("role = 'producer'\ntopics = []"), "user shop: topics = [] allows nothing"),
        (right("role = 'producer'\ntopics = ['a/b']"), "user shop: 'a/b' in topics is neither a name"),
        (right("role = 'producer'\ntopics = ['*a']"), "user shop: '*a' in topics is neither a name"),
        (right("role = 'producer'\nsubscriptions = ['a']"), "user shop: subscriptions are for the role consumer"),
        (right("role = 'device'\ntopics = ['a*']"), "user shop: a device's topic is a name or *, not 'a*'"),
        ("[['users'.'a/b']]\nrole = 'observer'", "user"),
        ("[[users.shop]", "not TOML"),
        (quota("topics = -1"), "$.quotas.topics: expected `int` >= 0; use a whole number from 0 to"),
        (quota("topics = 'many'"), "invalid enum value 'many'; use a whole number from 0 to 10000000 or \"unlimited\""),
        (quota("requests_per_second = 0"), "expected `int` >= 1"),
        (quota("bytes_per_second = 69904"), "expected `int` >= 69905"),
        (quota("topic = 1"), "quotas are in [quotas], [quotas.roles.ROLE] and [quotas.users.NAME]"),
        (quota("topics = -1", ".users.shop"), "$.quotas.users.shop.topics: expected `int` >= 0"),
        (quota("topics = 1", ".roles.boss"), "$.quotas.roles: invalid enum value 'boss'; use \"device\""),
        (quota("topics = 1", ".roles.device"), "quotas.roles.device: the broker does not tell"),
        (quota("topics = 1", ".users.stranger"), "quotas.users.stranger: there is no such user"),
        (quota("topics = 1", ".users.gateway"), "quotas.users.gateway: the user is only a device"),
    ],
)
def test_an_error_is_one_line_that_names_the_file_and_the_user(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_access_file(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot read users and rights: No such file"):
        read_access_file(tmp_path / "missing.toml")
    (tmp_path / "large").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_access_file(tmp_path / "large")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not TOML"):
        read_access_file(tmp_path / "binary")


def test_the_example_is_valid() -> None:
    assert {Role.DEVICE, Role.PRODUCER, Role.CONSUMER, Role.OBSERVER, Role.ADMINISTRATOR} == {
        each.role for rights in read_access_file(ROOT / "deploy" / "access.toml").users.values() for each in rights
    }
