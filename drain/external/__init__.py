"""Backlogs of external topics, from their tables."""
