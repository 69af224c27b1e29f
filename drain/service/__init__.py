"""The Spark process that serves backlog requests."""
