"""A shard forgets the least recently used anonymous producers, and only above its limit."""

import pytest

from headgate.model import entries as e
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.producer_rules import ProducerRules


def opened(rules: ProducerRules, producer_id: int, name: str | None = None, epoch: int = 0) -> None:
    entry = e.ProducerOpened(producer_id=producer_id, producer_epoch=epoch, token=f"{producer_id}/{epoch}", name=name)
    rules.opened(0, entry)


def rules_of_three() -> ProducerRules:
    """Return the rules of a shard with a limit of two, and with the producers 1, 2 and 3."""
    rules = ProducerRules(most=2)
    for producer_id in (1, 2, 3):
        opened(rules, producer_id)
    return rules


def test_the_least_recently_used_one_is_forgotten() -> None:
    rules = rules_of_three()
    rules.used(0, 1)
    rules.check_expiry(0, [2])

    assert rules.forgotten == 1


def test_one_that_opened_its_next_epoch_is_used() -> None:
    rules = rules_of_three()
    opened(rules, 1, epoch=1)

    with pytest.raises(BrokenPromiseError, match="is forgotten before 2"):
        rules.check_expiry(0, [1])


def test_a_named_one_is_not_forgotten() -> None:
    rules = rules_of_three()
    opened(rules, 4, name="import")
    opened(rules, 4, epoch=1)

    with pytest.raises(BrokenPromiseError, match="producer 4 is forgotten, and it is not an anonymous one"):
        rules.check_expiry(0, [4])
