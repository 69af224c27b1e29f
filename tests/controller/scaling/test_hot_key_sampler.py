"""Estimates of the fraction of records with the hottest hash."""

from controller.scaling.hot_key_sampler import MIN_SAMPLES, RETAINED_SAMPLES, HotKeySampler
from headgate.ledger.chunk import RecordColumns


def chunk(*keys: bytes, topic_id: int = 1, segment: int = 0) -> RecordColumns:
    count = len(keys)
    return RecordColumns(
        [topic_id] * count, [segment] * count, list(range(count)), [0] * count, list(keys), [b""] * count
    )


def test_the_fraction_is_unknown_with_few_samples() -> None:
    samples = HotKeySampler()
    for _ in range(MIN_SAMPLES - 1):
        samples.sample(chunk(b"k"))
    assert samples.hottest_hash_fraction(1, 0) is None

    samples.sample(chunk(b"k"))
    assert samples.hottest_hash_fraction(1, 0) == 1.0


def test_the_fraction_is_that_of_the_records() -> None:
    """Three of four records have one key; the other keys are distinct."""
    samples = HotKeySampler()
    for number in range(500):
        samples.sample(chunk(*(b"hot" if n % 4 else b"%d-%d" % (number, n) for n in range(97))))

    fraction = samples.hottest_hash_fraction(1, 0)
    assert 0.6 < fraction < 0.9


def test_old_samples_are_dropped() -> None:
    samples = HotKeySampler()
    for _ in range(RETAINED_SAMPLES):
        samples.sample(chunk(b"hot"))
    for n in range(RETAINED_SAMPLES):
        samples.sample(chunk(b"%d" % n))

    fraction = samples.hottest_hash_fraction(1, 0)
    assert fraction < 0.1


def test_segments_are_sampled_separately_and_dropped_unless_retained() -> None:
    samples = HotKeySampler()
    for n in range(MIN_SAMPLES):
        samples.sample(chunk(b"hot", segment=1))
        samples.sample(chunk(b"%d" % n, segment=2))
    assert samples.hottest_hash_fraction(1, 1) == 1.0
    assert samples.hottest_hash_fraction(1, 2) != 1.0

    samples.retain({(1, 2)})
    assert samples.hottest_hash_fraction(1, 1) is None
    assert samples.hottest_hash_fraction(1, 2) is not None
