"""The domain model: layouts, ledger entries, hashing, key buckets. Pure values and folds."""
