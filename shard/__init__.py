"""The state of a shard and everything that is decided from it: requests, subscriptions, assignment, reports. Pure."""
