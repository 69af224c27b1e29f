"""The domain model: layouts, ledger entries, hashing, key buckets, offsets. Pure values and folds."""
