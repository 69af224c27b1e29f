"""Rewriting old chunks into large objects."""
