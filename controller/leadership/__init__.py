"""Leader election: the state machine, the election port and its ZooKeeper adapter."""
