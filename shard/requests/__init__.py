"""What a leader decides about requests. Pure."""
