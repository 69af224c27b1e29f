"""Makes the Grafana dashboard from Python: `python -m monitoring`. Part of the repository, not of a distribution."""
