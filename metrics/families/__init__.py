"""The daemon's metrics, one module per subject."""
