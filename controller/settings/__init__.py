"""The daemon's settings: sections, loading, validation and reload."""
