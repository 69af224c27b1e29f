"""One daemon: it contends for shards, leads some, and serves what operators ask."""
