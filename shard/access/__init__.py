"""Who may do what, and how much of it. Pure."""
