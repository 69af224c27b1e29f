"""Compaction: rewriting old chunks into large objects."""
