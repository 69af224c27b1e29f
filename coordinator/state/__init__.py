"""What a subscription is: positions, consumers and grants, as a fold over its ledger entries. Pure."""
