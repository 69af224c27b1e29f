"""Lists are cut into pages without gaps or repetitions."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.protocol import codec
from headgate.protocol.codec import PAGE_BYTES, cut_page, follows
from headgate.protocol.replies import Done, Rejected

NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,8}\Z")


def all_pages(items: dict[tuple[str, ...], Rejected], page_bytes: int) -> list[list[Rejected]]:
    pages: list[list[Rejected]] = []
    after: str | None = None
    while True:
        page, after = cut_page(
            ((names, item) for names, item in sorted(items.items()) if follows(after, *names)), page_bytes
        )
        pages.append(page)
        if after is None:
            return pages


@given(st.dictionaries(st.tuples(NAMES, NAMES), st.integers(0, 300), max_size=20), st.integers(1, 1000))
def test_the_pages_contain_every_item_once_in_order(sizes, page_bytes):
    items = {names: Rejected(verdict="invalid", reason="x" * size) for names, size in sizes.items()}

    pages = all_pages(items, page_bytes)

    assert [item for page in pages for item in page] == [item for _, item in sorted(items.items())]
    for page in pages:
        assert len(page) <= 1 or sum(len(codec.encode(item)) for item in page) <= page_bytes


def test_a_page_is_as_full_as_its_size_allows():
    item = Done()
    items = {(name,): item for name in "abcde"}

    assert [len(page) for page in all_pages(items, 2 * len(codec.encode(item)))] == [2, 2, 1]


def test_only_the_items_of_one_page_are_built():
    built: list[str] = []

    def describe(name: str) -> Done:
        built.append(name)
        return Done()

    cut_page((((name,), describe(name)) for name in "abcde"), 2 * len(codec.encode(Done())))

    assert built == ["a", "b", "c"]


def test_a_page_has_256_kib() -> None:
    assert PAGE_BYTES == 262_144
