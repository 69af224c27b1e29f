"""The whole program at scale on one machine: many shards, daemons, topics, segments, consumers and producer identities.

Servers and daemons are real processes; the clients are generated. It measures, and judges nothing: see
docs/operations/sizing.md for what the numbers mean.
"""
