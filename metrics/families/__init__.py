"""The daemon's metrics, one module per subject, which creates them and registers their events."""
