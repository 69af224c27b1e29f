"""Commands about the whole cluster."""
