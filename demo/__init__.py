"""The main use case on real servers: keyed records, through splits, merges and crashes."""
