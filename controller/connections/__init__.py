"""What a daemon needs to reach the broker, ZooKeeper, the Spark process and the store."""
