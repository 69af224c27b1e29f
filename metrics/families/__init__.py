"""The metrics of the daemon, one module per subject. Each module creates its metrics and registers their events."""
