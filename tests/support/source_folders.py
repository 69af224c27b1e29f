"""The folders of this repository that contain Python, for tests that read all of it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
_FOLDERS = """
    headgate coordinator controller drain metrics shard web
    bench chaos demo examples integrations monitoring scale trials tests
"""
SOURCE_FOLDERS = tuple(_FOLDERS.split())
