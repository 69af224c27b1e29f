"""Automatic splits and merges."""
