"""The links of the distributions, as the builder names them."""

import pytest

from hatch_build import project_urls


def test_without_the_variable_no_link_is_claimed() -> None:
    assert {} == project_urls({})
    assert {} == project_urls({"HEADGATE_PROJECT_URLS": " "})


def test_links_are_what_the_builder_names() -> None:
    named = "Source=https://code.example.org/headgate?a=b\n Homepage=https://example.org"

    assert {"Source": "https://code.example.org/headgate?a=b", "Homepage": "https://example.org"} == project_urls(
        {"HEADGATE_PROJECT_URLS": named}
    )


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("Home=https://example.org", "write each of Homepage, Documentation, Source, Changelog once"),
        ("https://example.org", "write each of Homepage, Documentation, Source, Changelog once"),
        ("Source=https://a.example Source=https://b.example", "write each of .* once"),
        ("Source=", "write an https:// URL"),
        ("Source=http://example.org", "write an https:// URL"),
        ("Source=git@example.org:headgate", "write an https:// URL"),
        ("Source=https://", "write an https:// URL"),
        ("Source=https://user:secret@example.org", "without a user"),
        ("Source=https://[example.org", "write an https:// URL"),
    ],
    ids=["label", "no label", "twice", "empty", "not encrypted", "no URL", "no host", "user", "brackets"],
)
def test_another_link_is_refused_in_one_line(named: str, problem: str) -> None:
    with pytest.raises(SystemExit, match=rf"^headgate: HEADGATE_PROJECT_URLS: '.*': .*{problem}[^\n]*$"):
        project_urls({"HEADGATE_PROJECT_URLS": named})
