"""The status page over HTTP: its paths, and its files."""

import hashlib
import re
from importlib.resources import files

import pytest

from web.page_routes import NAMES

pytestmark = pytest.mark.real_time

VENDORED = {"idiomorph.min.js": "4cbd535caf7663a51eda9bce6595371c384fc430d54b8d414e29a61167f19f96"}
"""dist/idiomorph.min.js of idiomorph 0.8.0 in the npm registry."""


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/", 200, "Topics by activity"),
        ("/topics?contains=ord", 200, "Topics by name"),
        ("/topics?contains=%3Cb%3E", 200, 'name="contains" value="&lt;b&gt;"'),
        ("/subscriptions?contains=ORDERS/b", 200, "Subscriptions by name"),
        ("/subscriptions?contains=x", 200, "There are no such subscriptions."),
        ("/topics/orders", 200, "Topic orders"),
        ("/topics/orders/subscriptions/billing", 200, "Subscription billing"),
        ("/topics/nowhere", 404, "there is no topic &#x27;nowhere&#x27;"),
        ("/topics/%3Cscript%3E", 404, "&lt;script&gt;"),
        ("/topics/orders/subscriptions/x", 404, "has no subscription"),
    ],
)
async def test_each_page_has_a_permanent_address(harness, path, status, text):
    found, headers, html = await harness.get(path)

    assert (found, headers["Content-Type"], headers["Cache-Control"]) == (
        status,
        "text/html; charset=utf-8",
        "no-store",
    )
    assert text in html


async def test_a_page_whose_leader_does_not_answer_says_so_and_follows_its_stream(harness):
    harness.source.problem = "daemon 'two' did not answer"
    status, _, html = await harness.get("/")

    assert status == 503
    assert "daemon &#x27;two&#x27; did not answer" in html
    assert 'data-events="/live?page=%2F"' in html


async def test_files_are_kept_by_browsers_until_they_change(harness):
    _, _, html = await harness.get("/")
    urls = sorted(set(re.findall(r'"(/static/[^"]+)"', html)))
    assert [url.split("?")[0].rpartition("/")[2] for url in urls] == sorted(NAMES)

    for url in urls:
        status, headers, _ = await harness.get(url)
        assert (status, headers["Cache-Control"]) == (200, "private, max-age=31536000, immutable")
        assert (await harness.get(url, **{"If-None-Match": headers["ETag"]}))[0] == 304
        _, other, _ = await harness.get(url.split("?")[0])
        assert (other["ETag"], other["Cache-Control"]) == (headers["ETag"], "private, no-cache")
    assert (await harness.get("/static/../page.py"))[0] == 404
    assert (await harness.get("/static/nothing.js"))[0] == 404


@pytest.mark.parametrize("name", sorted(VENDORED))
def test_vendored_files_are_those_of_their_release(name):
    assert hashlib.sha256(files("web.page").joinpath("static", name).read_bytes()).hexdigest() == VENDORED[name]
