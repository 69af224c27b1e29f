"""What applies to a topic, and where it is from: with a leader, its settings, and a client."""

from controller.settings.sections import RetentionSettings, ScalingSettings
from headgate import TopicPolicy
from headgate.client.admin import Admin
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import client, create


async def test_each_value_names_its_source_and_a_reload_changes_it() -> None:
    """The topic's own value wins, also one that equals the cluster's."""
    world = OneShard(scaling=ScalingSettings(split=True), retention=RetentionSettings(max_age_seconds=60, max_bytes=-1))
    async with world.leader() as leader, Admin(client(world, "admin")) as admin:
        await create(world, segments=3)
        await admin.set_topic_policy("orders", TopicPolicy(max_bytes=7, ignore_subscriptions=False))
        expected = {
            "auto_split": (True, "setting"),
            "auto_merge": (False, "default"),
            "min_segments": (3, "default"),
            "max_segments": (64, "default"),
            "max_age_ms": (60_000, "setting"),
            "max_bytes": (7, "topic"),
            "ignore_subscriptions": (False, "topic"),
        }
        assert expected == {each.name: (each.value, each.source) for each in await admin.topic_settings("orders")}
        leader.pruner.settings = RetentionSettings()
        found = {each.name: (each.value, each.source) for each in await admin.topic_settings("orders")}
        assert expected | {"max_age_ms": (-1, "default")} == found
