"""One shard's leader: requests in, chunks and replies out."""
