"""`headgate deploy-files`."""

import tomllib
from pathlib import Path

import pytest
import yaml

from tests.headgate.cli.conftest import Invoke

ROOT = Path(__file__).parents[3]


def contents(folder: Path) -> dict[str, bytes]:
    """Return relative path → content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_it_writes_every_file_of_deploy_and_examples(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "deploy"

    result = invoke("deploy-files", str(folder))

    examples = {f"examples/{name}": content for name, content in contents(ROOT / "examples").items()}
    assert contents(ROOT / "deploy") | examples == contents(folder)
    assert sorted(str(folder / name) for name in contents(folder)) == sorted(result.stdout.splitlines())


@pytest.mark.parametrize("force", [False, True])
def test_a_changed_file_is_replaced_only_with_force(force: bool, invoke: Invoke, tmp_path: Path) -> None:
    invoke("deploy-files", str(tmp_path))
    unit, rules = tmp_path / "headgate.service", tmp_path / "prometheus" / "headgate.rules.yml"
    shipped = unit.read_bytes()
    unit.write_text("changed")
    rules.unlink()

    result = invoke("deploy-files", str(tmp_path), *(["--force"] if force else []))

    assert (shipped if force else b"changed", force) == (unit.read_bytes(), rules.exists())
    if not force:
        assert f"headgate: {unit}: changed since they were written; --force replaces such files\n" == result.stderr


def test_a_folder_that_cannot_be_written_is_one_line(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = invoke("deploy-files", str(tmp_path / "file" / "deploy"))

    assert (1, 1) == (result.exit_code, result.stderr.count("\n"))
    assert "Not a directory" in result.stderr


def test_alerts_and_the_status_page_link_to_the_runbook_that_is_named(invoke: Invoke, tmp_path: Path) -> None:
    url = "https://ops.example.com/runbook?v=2"

    assert 0 == invoke("deploy-files", str(tmp_path), "--runbook-url", url).exit_code

    assert url == tomllib.loads((tmp_path / "headgate.toml").read_text())["http"]["runbook_url"]
    prometheus = yaml.safe_load((tmp_path / "prometheus/prometheus.yml").read_text())
    assert {"headgate_runbook": url} == prometheus["global"]["external_labels"]
    groups = yaml.safe_load((tmp_path / "prometheus/headgate.rules.yml").read_text())["groups"]
    links = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert links
    assert [] == [link for link in links if f'"{url}" }}}}#headgate' not in link]
    assert "RUNBOOK.md#" not in (tmp_path / "prometheus/headgate.rules.test.yml").read_text()
    assert "changed since" in invoke("deploy-files", str(tmp_path)).stderr
