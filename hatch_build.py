"""Adds the project's links to the metadata of both distributions, as far as the builder names them.

``HEADGATE_PROJECT_URLS`` holds ``Label=https://…`` items, separated by spaces. No address is guessed from another one,
because hosts differ in their paths. Without the variable the metadata claims no link.

hatchling reads the links of a source distribution from its PKG-INFO.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "HEADGATE_PROJECT_URLS"
LABELS = ("Homepage", "Documentation", "Source", "Changelog")


def project_urls(environment: Mapping[str, str]) -> dict[str, str]:
    """Return label → URL. Exits with one line that names the first item that is wrong."""
    urls: dict[str, str] = {}
    for item in environment.get(VARIABLE, "").split():
        label, _, url = item.partition("=")
        if label not in LABELS or label in urls:
            raise SystemExit(f"headgate: {VARIABLE}: {item!r}: write each of {', '.join(LABELS)} once, as Label=URL")
        if not _is_public(url):
            raise SystemExit(f"headgate: {VARIABLE}: {item!r}: write an https:// URL without a user")
        urls[label] = url
    return urls


def _is_public(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:  # brackets around what is no address
        return False


class UrlsHook(MetadataHookInterface):
    """Fills in the links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in what ``dynamic`` announces."""
        metadata["urls"] = project_urls(os.environ)
