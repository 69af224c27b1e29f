"""The Spark process that answers backlog requests."""
