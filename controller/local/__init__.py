"""Servers and processes on this machine, for `headgate up`, the demo and tests."""
