"""Elections, the registry of daemons and the passing on of locks, in ZooKeeper."""
