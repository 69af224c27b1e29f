"""Pruning of drained segments and trimming of old chunks."""
