"""The state of a shard, as a fold over its ledger. Pure."""
