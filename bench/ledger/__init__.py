"""The ledger: its format, durable writes, and restoring from it."""
