"""The secrets of a node's folder. What `headgate up --tls` makes of them is tested in tests/controller/cli/test_up.py."""

from pathlib import Path

from controller.local.broker_access import is_password
from controller.local.security import LocalSecurity
from controller.settings.load import Settings
from controller.settings.sections import LedgerSettings
from headgate.settings.config import ClientConfig
from web.tokens import read_tokens

PLAIN = ClientConfig(cluster="local", broker_host="127.0.0.1", broker_port=1883, ledger_url="file:///x")


def hash_of(folder: Path, user: str) -> str:
    lines = (folder / "broker" / "passwords").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines)[user]


def test_the_broker_knows_the_hash_of_each_password(tmp_path: Path):
    security = LocalSecurity(tmp_path, "local")

    for user in security.users:
        assert is_password(security.password_file(user).read_text().strip(), hash_of(tmp_path, user))
    assert is_password((tmp_path / "secrets" / "broker.password").read_text().strip(), hash_of(tmp_path, "headgate"))


def test_a_deleted_password_is_replaced(tmp_path: Path):
    file = LocalSecurity(tmp_path, "local").password_file("producer")
    old = file.read_text().strip()
    file.unlink()

    LocalSecurity(tmp_path, "local")

    assert not is_password(old, hash_of(tmp_path, "producer"))
    assert is_password(file.read_text().strip(), hash_of(tmp_path, "producer"))


def test_a_deleted_token_is_replaced_and_tokens_of_others_stay_valid(tmp_path: Path):
    security = LocalSecurity(tmp_path, "local")
    others = f"grafana sha256:{'0' * 64}\n"
    with (tmp_path / "secrets" / "http.tokens").open("a") as file:
        file.write(others)
    old = security.http_token_file.read_text().strip()
    security.http_token_file.unlink()

    LocalSecurity(tmp_path, "local")

    assert others in (tmp_path / "secrets" / "http.tokens").read_text()
    tokens = read_tokens(tmp_path / "secrets" / "http.tokens", "tokens")
    assert tokens.holder(security.http_token_file.read_text().strip()) == "up"
    assert tokens.holder(old) is None


def test_without_tls_there_are_users_and_no_certificates(tmp_path: Path):
    security = LocalSecurity(tmp_path, "local", tls=False)

    settings = security.secure(Settings(ledger=LedgerSettings(url="file:///x")))
    config = security.client_config(PLAIN, "producer")
    assert (config.username, config.tls, config.ca_file) == ("producer", False, None)
    assert (settings.broker.username, settings.broker.tls, settings.zookeeper.tls) == ("headgate", False, False)
    assert settings.http.tokens_file
    assert settings.http.certificate_file is None
    assert security.broker_tls() is security.zookeeper_tls() is None
    assert not (tmp_path / "tls").exists()
