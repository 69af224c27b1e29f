"""Assign segments to consumers: targets, handovers and bucket ranges. Pure."""
