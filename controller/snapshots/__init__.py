"""Snapshots of a shard's state: format, restore, scheduling and the job that writes them."""
