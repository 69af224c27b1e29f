"""examples/kubernetes: the schemas of Kubernetes, and what the files name of headgate."""

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kubernetes_validate
import msgspec
import pytest
import yaml

from controller.settings.load import load_settings
from tests.support.documents.program_help import help_of
from tests.support.source_folders import ROOT
from web.api.documents import ScaleDocument
from web.api.openapi import OPERATIONS
from web.api.openapi import ROOT as API

VERSION = version("headgate-client")
FOLDER = ROOT / "examples" / "kubernetes"
OBJECTS = [
    each for name in ("headgate", "consumers") for each in yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text())
]
BY_KIND: dict[str, dict[str, Any]] = {each["kind"]: each for each in OBJECTS}
POD = BY_KIND["StatefulSet"]["spec"]["template"]["spec"]
DAEMON, DRAIN = POD["containers"]


@pytest.mark.parametrize(
    "document", [each for each in OBJECTS if "keda" not in each["apiVersion"]], ids=lambda each: each["kind"]
)
def test_each_object_has_the_form_that_kubernetes_requires(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.33", strict=True)


def test_the_settings_are_those_of_a_daemon_and_agree_with_the_manifests(tmp_path: Path) -> None:
    text = BY_KIND["ConfigMap"]["data"]["headgate.toml"]
    secrets = set(re.findall(r'/etc/headgate/secrets/([\w.-]+)"', text))
    for name in secrets:
        (tmp_path / name).write_text("[users]" if name.endswith(".toml") else "secret")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "headgate.toml").write_text(text.replace("/etc/headgate/secrets", str(tmp_path)))
    settings = load_settings(tmp_path / "headgate.toml")

    assert secrets == set(
        re.findall(r"--from-file=([\w.-]+)", (FOLDER / "README.md").read_text().partition("headgate-bucket")[0])
    )
    assert settings.http.port == DAEMON["ports"][0]["containerPort"]
    assert {settings.drain.socket, settings.ledger.url} <= set(DRAIN["args"])
    assert {f"headgate:{VERSION}", f"headgate-spark:{VERSION}"} == {each["image"] for each in POD["containers"]}
    assert "POD_NAME" in settings.http.advertised_host
    assert "headgate run --config" in DAEMON["args"][0]
    shown = help_of(("-m", "headgate"), ("drain", "serve"))
    assert [] == [option for option in DRAIN["args"] if option.startswith("--") and f"{option} " not in shown]
    assert {"/livez", "/readyz"} == {
        DAEMON[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
    }
    unit = (ROOT / "deploy" / "headgate.service").read_text()
    assert f"TimeoutStopSec={POD['terminationGracePeriodSeconds']}\n" in unit


def test_keda_reads_a_number_that_the_api_has() -> None:
    (trigger,) = BY_KIND["ScaledObject"]["spec"]["triggers"]
    (operation,) = (each for each in OPERATIONS if each.document is ScaleDocument)
    path = API + re.sub(r"{\w+}", r"[\\w-]+", operation.path)

    assert re.fullmatch(rf"https://headgate-http\.default:9464{path}", trigger["metadata"]["url"])
    (field,) = (
        each for each in msgspec.structs.fields(ScaleDocument) if each.name == trigger["metadata"]["valueLocation"]
    )
    assert field.type is int
    assert trigger["authenticationRef"]["name"] == BY_KIND["TriggerAuthentication"]["metadata"]["name"]
    assert BY_KIND["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == BY_KIND["Deployment"]["metadata"]["name"]
