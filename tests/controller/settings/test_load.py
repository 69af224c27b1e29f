"""Settings: defaults, errors that name the setting, and passwords."""

import ast
import inspect
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.settings import load, sections
from controller.settings.files import toml_document
from controller.settings.sections import (
    AccessSettings,
    DrainSettings,
    InstanceSettings,
    LedgerSettings,
    MetricsSettings,
)
from headgate import ClientConfig, load_client_config
from headgate.errors import ConfigError
from tests.support.samples.secret_files import write_secret

LEDGER = '[access]\nopen = true\n[ledger]\nurl = "file:///var/lib/headgate/ledger"\n'


def error_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load.parse_settings(text, "headgate.toml")
    return str(caught.value)


def test_only_the_ledger_has_no_default():
    settings = load.parse_settings(LEDGER, "headgate.toml")

    assert settings.ledger.url == "file:///var/lib/headgate/ledger"
    assert settings.zookeeper.hosts == "127.0.0.1:2181"
    assert settings.subscriptions.grace_seconds == 60


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("", "$.ledger", "required"),
        ("[ledger]\n", "$.ledger.url", "file:///var/lib/headgate/ledger"),
        ("ledger = 3\n", "$.ledger", "a section with: url"),
        (LEDGER + "[clustr]\n", "$.clustr", "did you mean cluster?"),
        (LEDGER + "[ingest]\nqueue_bites = 1\n", "$.ingest.queue_bites", "did you mean queue_bytes?"),
        (LEDGER + "[ingest]\nxyz = 1\n", "$.ingest.xyz", "Valid: queue_bytes, "),
        (LEDGER + "[ingest]\nqueue_bytes = 5\n", "$.ingest.queue_bytes", "from 4194304 to 268435456"),
        (LEDGER + '[ingest]\nmqtt_devices = "yes"\n', "$.ingest.mqtt_devices", "true or false"),
        (LEDGER + "[ingest]\nwrite_timeout_seconds = nan\n", "$.ingest.write_timeout_seconds", "from 0.001"),
        (LEDGER + "[ingest]\nwrite_timeout_seconds = inf\n", "$.ingest.write_timeout_seconds", "to 31536000"),
        (LEDGER + "[cluster]\nshards = 0\n", "$.cluster.shards", "a whole number from 1 to 1024"),
        (LEDGER + "[cluster]\nshards = 2.5\n", "$.cluster.shards", "a whole number"),
        (LEDGER + '[cluster]\nname = "a/b"\n', "$.cluster.name", "letters, digits"),
        (LEDGER + '[instance]\nname = "a b"\n', "$.instance.name", "letters, digits"),
        (LEDGER + "[broker]\nport = 0\n", "$.broker.port", "from 1 to 65535"),
        (LEDGER + '[broker]\nhost = ""\n', "$.broker.host", "text in quotes"),
        (LEDGER + '[broker]\npassword_file = "secret"\n', "$.broker.username", "username is not"),
        (LEDGER + '[broker]\nusername = "a"\npassword_file = ""\n', "$.broker.password_file", "name a file"),
        (LEDGER + '[zookeeper]\nca_file = "ca"\n', "$.zookeeper.ca_file", "ca_file is set, and tls is not"),
        (
            LEDGER + '[zookeeper]\ntls = true\ncertificate_file = "c"\n',
            "$.zookeeper.key_file",
            "certificate_file is set, and key_file is not",
        ),
        (
            LEDGER + '[zookeeper]\ntls = true\nkey_file = "k"\n',
            "$.zookeeper.certificate_file",
            "key_file is set, and certificate_file is not",
        ),
        (LEDGER + '[zookeeper]\nusername = "u"\n', "$.zookeeper.password_file", "username is set, and password_file"),
        (LEDGER + '[zookeeper]\npassword_file = "p"\n', "$.zookeeper.username", "password_file is set, and username"),
        (LEDGER + '[zookeeper]\nusername = "a:b"\npassword_file = "p"\n', "$.zookeeper.username", "no :"),
        (LEDGER + '[zookeeper]\nhosts = "zk1"\n', "$.zookeeper.hosts", "host:port"),
        (LEDGER + '[zookeeper]\nhosts = "zk1:2181,zk2:x"\n', "$.zookeeper.hosts", "'zk2:x'"),
        (LEDGER + '[zookeeper]\nhosts = "zk1:2181;zk2:2181"\n', "$.zookeeper.hosts", "comma-separated"),
        (LEDGER + '[broker]\nhost = "mqtt://here"\n', "$.broker.host", "no host name or address"),
        (LEDGER + '[broker]\nhost = "here:1883"\n', "$.broker.host", "broker.port is the port"),
        (LEDGER + '[zookeeper]\nhosts = "zk1:99999"\n', "$.zookeeper.hosts", "host:port"),
        (LEDGER + "[zookeeper]\nsession_timeout_seconds = 0.5\n", "$.zookeeper.session_timeout_seconds", "from 2"),
        (LEDGER + '[log]\nlevel = "loud"\n', "$.log.level", '"debug" or "error" or "info" or "warning"'),
        (LEDGER + '[drain]\nsocket = "tcp:127.0.0.1:7"\n', "$.drain.socket", "no absolute path of a Unix socket"),
        (LEDGER + "[drain]\nspawn = false\n", "$.drain.socket", "name the one on which the Spark process listens"),
        (LEDGER + f'[drain]\nsocket = "/{"x" * 107}"\n', "$.drain.socket", "108 bytes"),
        *(
            (
                LEDGER + f"[drain]\n{mode}{setting}\n",
                f"$.drain.{setting.partition(' ')[0]}",
                f"has no effect with {what}",
            )
            for mode, what in (
                ('spawn = false\nsocket = "/s"\n', "drain.spawn = false"),
                ('results = "file:///r"\n', "drain.results"),
            )
            for setting in (
                'spark_conf = {"spark.ui.enabled" = "true"}',
                'driver_memory = "2g"',
                'master = "yarn"',
                "start_timeout_seconds = 60",
            )
        ),
        (
            LEDGER + '[drain]\nresults = "file:///r"\nsocket = "/s"\n',
            "$.drain.socket",
            "has no effect with drain.results",
        ),
        (
            LEDGER + '[drain]\nspawn = false\nsocket = "/s"\nresults_stale_seconds = 60\n',
            "$.drain.results_stale_seconds",
            "without drain.results",
        ),
        (LEDGER + '[drain]\ndriver_memory = "big"\n', "$.drain.driver_memory", "text that matches"),
        (LEDGER + "[drain]\npoll_min_seconds = 10\npoll_max_seconds = 5\n", "$.drain.poll_min_seconds", "above"),
        (
            LEDGER + "[subscriptions]\ngrace_seconds = 14\n",
            "$.subscriptions.heartbeat_interval_seconds",
            "more than a third of grace_seconds 14",
        ),
        (LEDGER + "[scaling]\nmin_segments = 9\nmax_segments = 8\n", "$.scaling.min_segments", "above max_segments 8"),
        (LEDGER + "[scaling]\nmerge_window_seconds = 30\n", "$.scaling.merge_window_seconds", "below split_window"),
        (LEDGER + "[scaling]\nmax_segments = 0\n", "$.scaling.max_segments", "1"),
        ('[ledger]\nurl = "/var/lib"\n', "$.ledger.url", "write file:///absolute/folder or s3://bucket"),
        ('[ledger]\nurl = "file://var/lib"\n', "$.ledger.url", "file:///absolute/folder"),
        ('[ledger]\nurl = "s3:///x"\n', "$.ledger.url", "s3://bucket/path"),
        ('[ledger]\nurl = "s3://key:hush@bucket"\n', "$.ledger.url", "AWS_ACCESS_KEY_ID"),
        (LEDGER + '[drain]\nexternal = "x.toml"\nresults = "file:///results"\n', "$.drain.external", "results"),
        (
            LEDGER + '[drain]\nmaster = "spark:host:7077"',
            "$.drain.master",
            "Spark master 'spark:host:7077': write one of local[*]",
        ),
        (LEDGER + '[drain]\nmaster = "sc://h/;token=hush"', "$.drain.master", "the Spark master contains a token"),
        (
            LEDGER + '[drain]\nspark_conf = {"spark.cores.max" = 4}',
            "$.drain.spark_conf.spark.cores.max",
            "expected `str`, got `int`",
        ),
        (LEDGER + '[drain]\nspark_conf = {"spark.master" = "yarn"}', "$.drain.spark_conf", "drain.master"),
        (
            LEDGER + '[drain]\nspark_conf = {"spark.hadoop.fs.s3a.secret.key" = "hush"}',
            "$.drain.spark_conf",
            "in their environment",
        ),
    ],
)
def test_an_error_names_the_setting_and_valid_values_and_repeats_no_secret(text: str, field: str, message: str):
    error = error_of(text)

    assert error.startswith(f"headgate.toml: {field}")
    assert message in error
    assert "hush" not in error
    assert "\n" not in error


def test_invalid_toml_is_reported_with_its_line():
    assert "line 2" in error_of("[cluster]\nname = \n")


def test_a_missing_file_is_a_clear_error(tmp_path: Path):
    with pytest.raises(
        ConfigError, match=r"nowhere\.toml: cannot read the settings: No such file or directory; name another file"
    ):
        load.load_settings(tmp_path / "nowhere.toml")


def test_a_binary_file_is_a_clear_error(tmp_path: Path):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigError, match="not UTF-8"):
        load.load_settings(tmp_path / "x.toml")


def test_relative_paths_are_relative_to_the_settings_file(tmp_path: Path):
    path = tmp_path / "x.toml"
    path.write_text("\ufeff" + LEDGER + '[broker]\nusername = "u"\npassword_file = "secret"\n[drain]\nfolder = "d"\n')
    write_secret(tmp_path / "secret", b"pass word\n")

    settings = load.load_settings(path)

    assert settings.broker.password() == "pass word"
    assert settings.drain.folder == str(tmp_path / "d")


def test_the_tables_of_external_topics_are_read_with_the_settings(tmp_path: Path):
    """So that check-config finds errors in them, not a process that restarts again and again."""
    settings, tables = tmp_path / "headgate.toml", tmp_path / "external.toml"
    settings.write_text(LEDGER + '[drain]\nexternal = "external.toml"\n')
    tables.write_text("[external.orders]\n")
    assert load.load_settings(settings).drain.external == str(tables)

    tables.write_text("[external.orders.entrys]\n")
    with pytest.raises(ConfigError, match=r"external.toml: .*entrys"):
        load.load_settings(settings)


def test_a_systemd_credential_precedes_a_file_beside_the_settings(tmp_path: Path):
    path, credentials = tmp_path / "x.toml", tmp_path / "credentials"
    credentials.mkdir()
    path.write_text(LEDGER + '[broker]\nusername = "u"\npassword_file = "secret"\n')
    write_secret(tmp_path / "secret", b"beside")
    write_secret(credentials / "secret", b"credential")

    assert load.load_settings(path, credentials=credentials).broker.password() == "credential"
    assert load.load_settings(path, credentials=tmp_path / "other").broker.password() == "beside"


@pytest.mark.parametrize(
    ("section", "content", "message"),
    [
        ("broker", None, "No such file"),
        ("broker", b"", "is empty"),
        ("broker", b"\xff", "not UTF-8 text"),
        # The server hashes its bytes in the character set of its machine, so no list would name this user.
        ("zookeeper", "schlüssel".encode(), "beyond ASCII"),
    ],
)
def test_an_unusable_password_file_is_named(tmp_path: Path, section: str, content: bytes | None, message: str):
    path = tmp_path / "x.toml"
    path.write_text(LEDGER + f'[{section}]\nusername = "u"\npassword_file = "secret"\n')
    if content is not None:
        write_secret(tmp_path / "secret", content)

    with pytest.raises(ConfigError, match=rf"\$\.{section}\.password_file: .*{message}") as caught:
        getattr(load.load_settings(path), section).password()
    assert "schl" not in str(caught.value)


def test_files_of_zookeeper_are_credentials_or_beside_the_settings(tmp_path: Path):
    path, credentials = tmp_path / "x.toml", tmp_path / "credentials"
    credentials.mkdir()
    path.write_text(
        LEDGER
        + '[zookeeper]\nusername = "u"\npassword_file = "secret"\ntls = true\nca_file = "ca"\n'
        + 'certificate_file = "c"\nkey_file = "k"\n'
    )
    write_secret(credentials / "secret", b"hunter2")
    write_secret(credentials / "k", b"key")

    zookeeper = load.load_settings(path, credentials=credentials).zookeeper

    assert zookeeper.password() == "hunter2"
    assert (zookeeper.ca_file, zookeeper.certificate_file, zookeeper.key_file) == (
        str(tmp_path / "ca"),
        str(tmp_path / "c"),
        str(credentials / "k"),
    )


@pytest.mark.parametrize(
    ("hosts", "more", "warned"),
    [
        ("127.0.0.1:2181,[::1]:2181,localhost:2181/prefix", "", []),
        ("127.0.0.1:2181,zk2:2181", "", ["username", "tls"]),
        ("10.0.0.1:2181", 'username = "u"\npassword_file = "p"\n', ["tls"]),
        ("10.0.0.1:2281", "tls = true\n", ["username"]),
        ("10.0.0.1:2281", 'tls = true\nusername = "u"\npassword_file = "p"\n', []),
    ],
)
def test_an_open_zookeeper_is_a_warning_beyond_loopback(hosts: str, more: str, warned: list[str]):
    settings = load.parse_settings(LEDGER + f'[zookeeper]\nhosts = "{hosts}"\n{more}', "t")

    warnings = load.zookeeper_warnings(settings.zookeeper)
    assert [warning.partition(" is not set")[0] for warning in warnings] == [f"$.zookeeper.{name}" for name in warned]


def test_no_representation_of_the_settings_contains_the_password(tmp_path: Path):
    path = tmp_path / "x.toml"
    path.write_text(LEDGER + '[broker]\nusername = "u"\npassword_file = "file"\n')
    write_secret(tmp_path / "file", b"hunter2")
    settings = load.load_settings(path)
    settings.broker.password()

    assert "hunter2" not in repr(settings) + repr(settings.rows()) + msgspec.json.encode(settings).decode()


def test_every_setting_has_a_docstring():
    tree = ast.parse(inspect.getsource(sections))
    undocumented = [
        f"{section.name}.{ast.unparse(field.target)}"
        for section in tree.body
        if isinstance(section, ast.ClassDef)
        for field, below in zip(section.body, [*section.body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign)
        and not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant))
    ]

    assert undocumented == []


@pytest.mark.parametrize(
    ("url", "master", "unreachable"),
    [
        ("file:///l", "local[*]", False),
        ("file:///l", "spark://127.0.0.1:7077", False),
        ("file:///l", "spark://other:7077", True),
        ("s3://bucket/l", "spark://other:7077", False),
    ],
)
def test_a_ledger_in_a_folder_is_unreachable_for_remote_executors(url: str, master: str, unreachable: bool) -> None:
    settings = load.parse_settings(f'[ledger]\nurl = "{url}"\n[drain]\nmaster = "{master}"', "f.toml")
    assert load.ledger_unreachable_from_executors(settings) is unreachable


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(spark_conf=st.dictionaries(st.from_regex(r"spark\.[a-z\" =]{1,8}", fullmatch=True), TEXT), folder=TEXT)
def test_settings_are_read_back_with_any_text(spark_conf: dict[str, str], folder: str) -> None:
    settings = load.Settings(
        ledger=LedgerSettings(url="file:///a%20folder"),
        drain=DrainSettings(spark_conf=spark_conf, folder=f"x{folder}"),
        metrics=MetricsSettings(backlog_topics=["a", "b"]),
    )

    assert settings == load.parse_settings(toml_document("Two lines\nof comment.", settings), "a test")


def test_written_settings_name_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "headgate.toml"
    settings = load.Settings(
        access=AccessSettings(open=True), ledger=LedgerSettings(url="file:///a"), instance=InstanceSettings(name="one")
    )
    path.write_text(toml_document("", settings))

    assert "one" == load.load_settings(path, default_instance="another").instance.name


@pytest.mark.parametrize("username", [None, "ada"])
def test_a_client_configuration_is_read_back(tmp_path: Path, username: str | None) -> None:
    config = ClientConfig(cluster="c", broker_host="h", broker_port=1, ledger_url='file:///a"\x7fé', username=username)
    path = tmp_path / "client.toml"
    path.write_text(toml_document("For clients.", config))

    assert msgspec.structs.replace(config, file=str(path)) == load_client_config(path)
    assert msgspec.structs.asdict(config)["username"] is username
