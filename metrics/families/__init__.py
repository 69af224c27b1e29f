"""The metrics that no event declares: several events update them, or a status."""
