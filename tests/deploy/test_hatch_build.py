"""The links of the distributions, as the builder names them."""

from hatch_build import project_urls


def test_without_the_variable_no_link_is_claimed() -> None:
    assert {} == project_urls({})
    assert {} == project_urls({"HEADGATE_PROJECT_URLS": " "})


def test_links_are_what_the_builder_names() -> None:
    named = "Source=https://code.example.org/headgate?a=b\n Homepage=https://example.org"

    assert {"Source": "https://code.example.org/headgate?a=b", "Homepage": "https://example.org"} == project_urls(
        {"HEADGATE_PROJECT_URLS": named}
    )
