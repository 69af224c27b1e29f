"""Backlogs: the Spark pipeline that counts them, and its client."""
