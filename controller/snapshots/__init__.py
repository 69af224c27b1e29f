"""Snapshots of the state of a shard: format, restore, scheduling, and the job that writes them."""
