"""`headgate access`: what it prints, and its errors. It needs no cluster."""

import json
from pathlib import Path

import pytest

from tests.headgate.cli.conftest import Invoke
from web.tokens import read_tokens

ACCESS = """
[[users.shop]]
role = "producer"
topics = ["orders"]
[[users.billing]]
role = "consumer"
topics = ["orders"]
subscriptions = ["billing"]
[[users.pi]]
role = "device"
[quotas]
topics = 50
[quotas.users.shop]
requests_per_second = "unlimited"
"""
QUOTAS = {
    "topics": "50",
    "segments": "10000",
    "subscriptions": "2000",
    "consumers": "2000",
    "producers": "5000",
    "requests_per_second": "5000",
    "bytes_per_second": "100000000",
}
SETTINGS = """
[cluster]
name = "plant"
[broker]
username = "headgate"
[access]
file = "access.toml"
[ledger]
url = "file:///var/lib/headgate/ledger"
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "access.toml").write_text(ACCESS)
    (tmp_path / "headgate.toml").write_text(SETTINGS)
    return str(tmp_path / "headgate.toml")


def test_check_explains_a_decision_and_exits_with_it(invoke: Invoke, config: str) -> None:
    allowed = invoke("access", "check", "shop", "produce", "orders", "--config", config)
    denied = invoke("access", "check", "billing", "consume", "orders", "audit", "--config", config)

    assert 0 == allowed.exit_code
    assert allowed.stdout == (
        "allowed: user shop is producer of orders\n"
        "quotas: topics 50, segments 10000, subscriptions 2000, consumers 2000, producers 5000, requests_per_second "
        "unlimited, bytes_per_second 100000000\n"
    )
    assert 1 == denied.exit_code
    assert denied.stdout.startswith(
        "denied: user billing may not consume subscription audit of topic orders: "
        "the user is consumer of orders (subscriptions billing)\n"
    )
    assert "" == denied.stderr
    for user in "pi", "unknown":  # No quota holds for them: daemons do not see who publishes.
        assert "quotas" not in invoke("access", "check", user, "publish", "orders", "--config", config).stdout


def test_check_without_a_topic_means_all_topics(invoke: Invoke, config: str) -> None:
    denied = invoke("access", "check", "shop", "describe", "--config", config, "--json")

    assert 1 == denied.exit_code
    assert json.loads(denied.stdout) == {
        "allowed": False,
        "reason": "user shop may not describe all topics: the user is producer of orders",
        "quotas": QUOTAS | {"requests_per_second": "unlimited"},
    }


def test_list_shows_every_right_and_quota(invoke: Invoke, config: str) -> None:
    printed = invoke("access", "list", "--config", config, "--json")

    assert json.loads(printed.stdout) == {
        "rights": [
            {"user": "billing", "role": "consumer", "topics": "orders", "subscriptions": "billing"},
            {"user": "pi", "role": "device", "topics": "*", "subscriptions": "*"},
            {"user": "shop", "role": "producer", "topics": "orders", "subscriptions": "*"},
        ],
        "quotas": [{"user": "billing"} | QUOTAS, {"user": "shop"} | QUOTAS | {"requests_per_second": "unlimited"}],
    }
    assert {"producer", "unlimited"} <= set(invoke("access", "list", "--config", config).stdout.split())


def test_export_prints_the_brokers_configuration(invoke: Invoke, config: str) -> None:
    acl = invoke("access", "export", "--config", config)
    plugin = invoke("access", "export", "--config", config, "--format", "dynamic-security")

    assert "user shop\n" in acl.stdout
    assert "topic write headgate/plant/shards/+/requests/shop/+\n" in acl.stdout
    users = {client["username"] for client in json.loads(plugin.stdout)["clients"]}
    assert users == {"headgate", "pi", "billing", "shop"}


@pytest.mark.parametrize(
    ("replaced", "by", "problem"),
    [
        ('username = "headgate"', "", "$.broker.username is not set"),
        ('file = "access.toml"', "open = true", "access control is off"),
        ('file = "access.toml"', "", "$.access.file is not set"),
        ('file = "access.toml"', 'file = "none.toml"', "none.toml: cannot read users and rights: No such file"),
        ('file = "access.toml"', 'file = "access.toml"\nopen = true', "$.access.open excludes access.file"),
        ('username = "headgate"', 'username = "shop"', "user shop is the daemons' own"),
    ],
)
def test_an_unusable_configuration_is_one_line(invoke: Invoke, config: str, replaced: str, by: str, problem: str):
    Path(config).write_text(SETTINGS.replace(replaced, by))
    failed = invoke("access", "export", "--config", config)

    assert (1, "", 1) == (failed.exit_code, failed.stdout, len(failed.stderr.splitlines()))
    assert problem in failed.stderr


def test_each_token_is_printed_once_and_added_to_the_file(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    made = [invoke("http", "token", name, "--file", str(path)) for name in ("prometheus", "grafana", "prometheus")]
    tokens = [each.stdout.strip() for each in made]

    assert [each.exit_code for each in made] == [0, 0, 0]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [read_tokens(path, "x").holder(each) for each in tokens] == ["prometheus", "grafana", "prometheus"]
    assert not any(each in path.read_text() + "".join(one.stderr for one in made) for each in tokens)


def test_a_file_that_an_operator_wrote_keeps_its_lines_and_its_mode(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# tokens of the plant, no newline here")
    path.chmod(0o640)
    token = invoke("http", "token", "a", "--file", str(path)).stdout.strip()

    assert path.read_text().startswith("# tokens of the plant, no newline here\na sha256:")
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_tokens(path, "x").holder(token) == "a"


def test_an_unusable_file_or_name_is_one_line_and_changes_nothing(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("hunter2\n")
    path.chmod(0o600)
    for words, problem in (
        (("a", "--file", str(path)), f"headgate: --file: {path}, line 1: write NAME sha256:HASH"),
        (("a b", "--file", str(tmp_path / "other")), "headgate: 'a b' is not a name"),
        (("a", "--file", str(tmp_path / "nowhere" / "x")), f"headgate: {tmp_path / 'nowhere' / 'x'}: No such file"),
    ):
        result = invoke("http", "token", *words)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(problem)

    assert sorted(each.name for each in tmp_path.iterdir()) == ["tokens"]
    assert path.read_text() == "hunter2\n"
