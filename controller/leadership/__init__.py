"""Leader election: its port, the policy that decides, the adapter of ZooKeeper, and secrets that only daemons share."""
