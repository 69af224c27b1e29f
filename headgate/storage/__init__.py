"""Object stores: the port, its implementations and the local writer."""
