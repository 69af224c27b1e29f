"""Events, the metrics they update, and the HTTP server."""
