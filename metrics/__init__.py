"""Events, the metrics that they update, and health."""
