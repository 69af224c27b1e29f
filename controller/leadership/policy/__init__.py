"""Which daemon leads which shard, when it changes, and which daemons are ready to. Pure."""
