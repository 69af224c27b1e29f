"""Counting backlogs: plans, merges, results."""
