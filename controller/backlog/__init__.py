"""Backlogs as the leader reports them."""
