"""How records are sent: batches, their budget of memory, and the session of a producer with each shard."""
