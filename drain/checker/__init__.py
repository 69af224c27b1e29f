"""The daemon's side of the drain check. Imports no Spark."""
