"""The ledger's format: chunks, record columns and compacted objects."""
