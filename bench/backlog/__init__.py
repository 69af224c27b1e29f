"""Counting what is not acknowledged, with Spark."""
