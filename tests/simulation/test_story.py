"""A story is a table for people: 80 columns, consecutive chunks in one row."""

from collections import Counter

from tests.simulation.story import WIDTH, Story


def sample() -> Story:
    found = Story()
    found.add(0.0, "d1", "starts")
    found.add_chunk(0.5, 0, 1, 1, Counter(TermStarted=1))
    found.add_chunk(0.75, 0, 1, 2, Counter(RecordsStored=2))
    found.add_chunk(1.0, 0, 1, 3, Counter())
    found.add(12.0, "admin", "split 0", "failed: shard 0 of cluster 'sim' has no leader; " + "x" * 30)
    found.add_chunk(13.0, 0, 2, 4, Counter())
    return found


def test_consecutive_chunks_of_a_term_are_one_row() -> None:
    assert sample().table().splitlines()[:4] == [
        "     time  actor           what: result",
        "     0.00  d1              starts",
        "     0.50  epoch 1         chunk 0/1 to 3: 2 RecordsStored, 1 TermStarted",
        "    12.00  admin           split 0: failed: shard 0 of cluster 'sim' has no",
    ]
    assert sample().table().splitlines()[-1] == "    13.00  epoch 2         chunk 0/4: a barrier"


def test_rows_fit_a_terminal() -> None:
    assert max(map(len, sample().table().splitlines())) <= WIDTH


def test_the_last_rows_are_shown() -> None:
    assert sample().table(most_rows=1).splitlines() == [
        "… 3 earlier rows",
        "     time  actor           what: result",
        "    13.00  epoch 2         chunk 0/4: a barrier",
    ]
