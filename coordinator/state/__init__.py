"""The state of a subscription (positions, consumers, grants) as a fold over its ledger entries. Pure."""
