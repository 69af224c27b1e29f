"""Copy a ledger to another store while it is in use, and check a copy."""
