"""`headgate deploy-files`: write the files that a deployment starts from."""

from __future__ import annotations

import shutil
from importlib.resources import as_file, files
from pathlib import Path

import click

from headgate.cli.terminal.output import examples
from headgate.errors import HeadgateError

FOLDERS = {"deploy": ".", "examples": "examples"}
"""Folder in this distribution → where its files go, below the folder that the user names."""


@click.command(
    "deploy-files",
    epilog=examples("headgate deploy-files ./deploy", "headgate deploy-files /opt/headgate/deploy --force"),
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Replace files that differ.")
def deploy_files(folder: Path, force: bool) -> None:
    """Write systemd units, alerts, dashboards and examples of every configuration into FOLDER.

    Prints the path of each file. A file that was changed is not replaced: then nothing is written.
    """
    with as_file(files("controller")) as package:
        sources = {
            folder / target / path.relative_to(package / name): path
            for name, target in FOLDERS.items()
            for path in sorted((package / name).rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }
        changed = [str(path) for path, source in sources.items() if path.exists() and not _equal(path, source)]
        if changed and not force:
            raise HeadgateError(f"{', '.join(changed)}: changed since they were written; --force replaces such files")
        for path, source in sources.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
            click.echo(path)


def _equal(path: Path, source: Path) -> bool:
    return path.is_file() and path.read_bytes() == source.read_bytes()
