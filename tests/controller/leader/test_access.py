"""A leader acts on the present rights of the sender. What attackers may not do is in tests/security/test_requests.py."""

import pytest

from headgate.protocol.requests import OpenProducer, ProduceBatch
from shard.access.rules import AccessRules, Right, Role
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import batch, created

pytestmark = pytest.mark.looptime


async def test_a_stored_batch_is_answered_after_its_user_has_lost_the_right() -> None:
    """ "Not stored" would be untrue."""
    shard = OneShard()
    async with shard.leader(), shard.client("client-shop", "shop") as shop:
        await created(shop)
        shard.access.rules = AccessRules({"shop": (Right(Role.PRODUCER, ("orders",)),)})
        identity = await shop.call(OpenProducer, token="t")
        await shop.call(ProduceBatch, **batch(identity, 0))
        shard.access.rules = AccessRules({"shop": (Right(Role.PRODUCER, ("other",)),)})
        repeated = await shop.call(ProduceBatch, **batch(identity, 0))
        later = await shop.call(ProduceBatch, **batch(identity, 1))

    assert repeated.duplicate
    assert "forbidden" == later.verdict
