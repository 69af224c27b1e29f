"""The daemon's HTTP server, its API and the status page."""
