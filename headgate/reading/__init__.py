"""Read records from the ledger without the leader."""
