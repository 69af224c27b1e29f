"""Events, the metrics that they update, and the HTTP endpoint that exports them."""
