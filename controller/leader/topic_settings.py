"""What applies to a topic that overrides nothing, and which of it the cluster's settings say. Pure."""

from typing import get_args

from controller.retention.policy import rules_for
from controller.scaling.policy import effective_settings
from controller.settings.sections import RetentionSettings, ScalingSettings
from headgate.model.entries import NO_POLICY, TopicPolicy
from headgate.protocol.replies import TopicReply
from headgate.protocol.request_fields import PolicyField
from headgate.protocol.requests import DescribeTopic
from shard.requests.topic_commands import describe
from shard.state.topic import Topic


def described(
    request: DescribeTopic, topic: Topic, shard: int, scaling: ScalingSettings, retention: RetentionSettings
) -> TopicReply:
    """Return the reply to ``request``. A setting with the value of the default counts as the default."""
    cluster = _cluster_policy(topic, scaling, retention)
    default = _cluster_policy(topic, ScalingSettings(), RetentionSettings())
    configured = [each for each in get_args(PolicyField) if getattr(cluster, each) != getattr(default, each)]
    ends = [(segment, topic.pruned_ends[segment]) for segment in request.pruned if segment in topic.pruned_ends]
    return TopicReply(topic=describe(topic, shard), cluster_policy=cluster, configured=configured, pruned_ends=ends)


def _cluster_policy(topic: Topic, scaling: ScalingSettings, retention: RetentionSettings) -> TopicPolicy:
    scaled, kept = effective_settings(scaling, NO_POLICY, topic.first_segments), rules_for(NO_POLICY, retention)
    return TopicPolicy(
        auto_split=scaled.split,
        auto_merge=scaled.merge,
        min_segments=scaled.min_segments,
        max_segments=scaled.max_segments,
        max_age_ms=kept.max_age_ms,
        max_bytes=kept.max_bytes,
        ignore_subscriptions=kept.ignored == "all",
    )
