"""Which chunk was written by which term."""

from headgate.model import entries as e
from shard.state.terms import Terms


def test_a_point_of_the_history_is_a_chunk_and_the_term_that_wrote_it() -> None:
    terms = Terms()
    for chunk, term_id in ((1, 11), (5, 55), (6, 66)):
        terms.begin(e.TermStarted(leader_epoch=1, instance="a", term_id=term_id), chunk, 7)

    wrote = {(chunk, term_id) for chunk in range(10) for term_id in (0, 11, 55, 66, 67) if terms.wrote(chunk, term_id)}

    assert {(1, 11), (2, 11), (3, 11), (4, 11), (5, 55), (6, 66), (7, 66), (8, 66), (9, 66)} == wrote
    assert (66, 7) == (terms.newest_id, terms.started_at_ms)


def test_a_shard_without_a_term_has_no_history() -> None:
    assert not Terms().wrote(1, 0)
    assert 0 == Terms().newest_id
