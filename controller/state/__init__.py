"""A shard's state as a fold over its ledger. Pure."""
