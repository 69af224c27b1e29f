"""A conformance suite for clients in any language: see docs/write-a-client.md.

Cases are data (cases/*.toml). A client takes part with a *driver*: a program that reads commands from standard input
and writes answers to standard output, one JSON object a line. The server is a scripted leader, which can misbehave as
a network and a failing cluster do, or a real cluster.
"""
