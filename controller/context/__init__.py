"""What the parts of a leader share: their context, and the budget of steps."""
