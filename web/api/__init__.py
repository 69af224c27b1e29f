"""The HTTP API, version 1: its documents, how the parts of a cluster become one, and its OpenAPI document."""
