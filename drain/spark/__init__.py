"""Spark: sessions, engines, schemas and readers of chunks."""
