"""What a client asks about the cluster itself: its daemons, its shards, and who leads them."""
