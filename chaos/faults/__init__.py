"""The faults of a run: small classes with a beginning and an end."""
