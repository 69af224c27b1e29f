"""The settings of a daemon that concern the coordinators of subscriptions. Pure."""

from controller.settings.load import Settings
from coordinator.ports import CoordinatorSettings


def coordinator_settings(settings: Settings) -> CoordinatorSettings:
    """Return what a subscription's coordinator needs of the daemon's settings."""
    return CoordinatorSettings(
        grace_seconds=settings.subscriptions.grace_seconds,
        revoke_timeout_seconds=settings.subscriptions.revoke_timeout_seconds,
        heartbeat_interval_seconds=settings.subscriptions.heartbeat_interval_seconds,
        poll_min_seconds=settings.drain.poll_min_seconds,
        poll_max_seconds=settings.drain.poll_max_seconds,
        # A check waits until its segments' acknowledgements are durable, then for the run.
        poll_check_timeout_seconds=settings.drain.run_timeout_seconds + settings.ingest.write_timeout_seconds,
    )
