"""Backlogs as a leader reports them."""
