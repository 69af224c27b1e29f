"""Storing records: routing, latency, throughput, and producers without a leader."""
