"""The vocabulary: code, documents and deployment files use the terms of docs/glossary.md, and none of those they replaced.

Words are matched as whole words and without regard to case, in prose and in identifiers: `snake_case` and `CamelCase` names
are split first. A phrase also matches across a line break.
"""

import re
from collections.abc import Iterator

from tests.support.source_folders import ROOT, SOURCE_FOLDERS

FOLDERS = (*SOURCE_FOLDERS, "clients", "deploy", "docs")
_FILES = "README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md Makefile pyproject.toml .pre-commit-config.yaml .ci/run"
FILES = tuple(_FILES.split())
SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".service", ".timer", ".conf", ".cfg", ".mjs", ".ts"}

# Word or phrase → what to write in its place.
REPLACED = {
    "reign|reigns|reigned|reigning": "term",
    "heir|heirs": "affinity, preferred owner",
    "tether|tethers|tethered": "parent-death signal",
    "sought": "seek",
    "whoever|somebody|someone|nobody|anybody|everybody": "the component that acts",
    "anew": "again",
    "desk|desks": "service",
    "ghost|ghosts": "stale registration",
    "meddler|meddlers": "FaultInjectingTransport",
    "for ever": "permanently",
    "roll up|rolled up|rolls up|rolling up|rollup|rollups": "compaction, compact",
    "plain device|plain devices": "MQTT device",
    "mend|mends|mended|mending": "fix, recover",
    "struck off": "evicted",
    "told": "is notified; the component reports",
    "let go|lets go|letting go": "release",
    "at fault": "failing",
    "room|rooms": "package, registry, capacity, space",
    "stand|stands|stood": "exist, be durable, be in",
    "by itself": "automatically, alone",
    "comes to|come to|came to": "evaluates to, returns",
    "weather|storm|storms": "network faults",
    "he|his|him|she|her": "the component that acts",
    "figure|figures": "benchmark",
    "merely": "only",
    "hears": "receives",
    "goes on|go on|went on": "continues",
    "epochless": "without an epoch",
    "out of reach": "unreachable",
}
# Files that quote the old vocabulary on purpose.
EXCEPTIONS = (
    "CHANGELOG.md",  # lists names before and after
    "tests/test_vocabulary.py",  # names the words
    "docs/decisions/names.md",  # says which words were replaced
    "clients/javascript/package-lock.json",  # written by npm
)


def texts() -> Iterator[str]:
    """Yield the paths of all files that are checked, relative to the repository."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    for path in sorted([*found, *(ROOT / name for name in FILES)]):
        name = path.relative_to(ROOT).as_posix()
        if name not in EXCEPTIONS and "node_modules" not in name and "__pycache__" not in name:
            yield name


def _compiled() -> re.Pattern[str]:
    """Return one pattern with a group for each entry; a check of the first letter comes first."""
    groups = [f"({pattern})".replace(" ", r"\s+(?:#\s+)?") for pattern in REPLACED]
    first_letters = "".join(sorted({word[0] for pattern in REPLACED for word in pattern.split("|")}))
    return re.compile(rf"\b(?=[{first_letters}])(?:{'|'.join(groups)})\b")


OLD_WORDS = _compiled()
BETTER = list(REPLACED.values())


def old_words(text: str) -> list[tuple[int, str, str]]:
    """Return (line, what it says, what to write) for each word of the old vocabulary."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_|-", " ", text).lower()
    return [
        (words.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), BETTER[(match.lastindex or 1) - 1])
        for match in OLD_WORDS.finditer(words)
    ]


def test_no_word_of_the_old_vocabulary_is_used() -> None:
    found = [
        f"{name}:{line}: {word!r}: write {better}"
        for name in texts()
        for line, word, better in old_words((ROOT / name).read_text())
    ]

    assert [] == found


def test_no_command_asks_an_index_for_a_distribution_of_headgate() -> None:
    """PyPI and npm have none, so the names could become those of another program."""
    asking = re.compile(r"\b(?:pip|npm) install\b[^`\n]*[ '\"@](headgate(?:-\w+)?)(?=[\[/'\"` ]|$)", re.MULTILINE)
    texts_by_name = {name: (ROOT / name).read_text() for name in texts()}

    assert ["headgate-client"] == asking.findall("python3 -m pip install 'headgate-client[otel]'")
    assert {} == {name: found for name, text in texts_by_name.items() if (found := asking.findall(text))}
