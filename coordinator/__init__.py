"""One subscription at work: it asks `shard` what to do, and watches drains, loads and members."""
