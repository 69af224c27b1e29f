"""Commands about subscriptions: positions, backlogs, and why a segment waits."""
