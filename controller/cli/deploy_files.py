"""`headgate deploy-files`: write the files that a deployment starts from."""

import re
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import click

from headgate.cli.terminal.option_types import FilePath
from headgate.cli.terminal.output import examples
from headgate.errors import HeadgateError

FOLDERS = {"deploy": ".", "examples": "examples"}
"""Folder in this distribution → where its files go, below the folder that the user names."""
EXAMPLE_URL: Final = "https://wiki.example.org/headgate/runbook"
RUNBOOK_PLACES: Final = {
    "headgate.toml": (f'# runbook_url = "{EXAMPLE_URL}"', 'runbook_url = "{url}"'),
    "prometheus/headgate.rules.yml": ('"RUNBOOK.md" }}', '"{url}" }}'),
    "prometheus/headgate.rules.test.yml": ("runbook_url: RUNBOOK.md#", "runbook_url: {url}#"),
    "prometheus/prometheus.yml": (f"headgate_runbook: {EXAMPLE_URL}\n", "headgate_runbook: {url}\n"),
}
"""File → what ``--runbook-url`` replaces in it, and by what."""
_URL = re.compile(r"https?://[\w.:-]+(/[\w.~/%+@:=-]*)?(\?[\w.~/%+@:=&-]*)?")


def _checked_url(_context: click.Context, _parameter: click.Parameter, url: str | None) -> str | None:
    if url is not None and not _URL.fullmatch(url):
        raise click.BadParameter(f"{url!r} is no address such as {EXAMPLE_URL}, without # and what follows it")
    return url


@click.command(
    "deploy-files",
    epilog=examples(
        "headgate deploy-files ./deploy",
        "headgate deploy-files /opt/headgate/deploy --force",
        "headgate deploy-files ./deploy --runbook-url https://wiki.lan/runbook",
    ),
)
@click.argument("folder", type=FilePath(file_okay=False))
@click.option("--force", is_flag=True, help="Replace files that differ.")
@click.option(
    "--runbook-url",
    metavar="URL",
    callback=_checked_url,
    help="Where your copy of RUNBOOK.md is: alerts and the status page link to its sections.",
)
def deploy_files(folder: Path, force: bool, runbook_url: str | None) -> None:
    """Write systemd units, alerts, dashboards and examples of every configuration into FOLDER.

    Prints the path of each file. A file that was changed is not replaced: then nothing is written.
    """
    with as_file(files("controller")) as package:
        contents = {
            folder / target / path.relative_to(package / name): _content(path, package / name, runbook_url)
            for name, target in FOLDERS.items()
            for path in sorted((package / name).rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }
    changed = [
        str(path)
        for path, content in contents.items()
        if path.exists() and not (path.is_file() and path.read_bytes() == content)
    ]
    if changed and not force:
        raise HeadgateError(f"{', '.join(changed)}: changed since they were written; --force replaces such files")
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        click.echo(path)


def _content(path: Path, root: Path, runbook_url: str | None) -> bytes:
    content = path.read_bytes()
    place = RUNBOOK_PLACES.get(path.relative_to(root).as_posix())
    if place is None or runbook_url is None:
        return content
    text, replacement = place
    assert text.encode() in content, f"{path} has the place of the address"
    return content.replace(text.encode(), replacement.replace("{url}", runbook_url).encode())
