"""What a program says: events, lines on standard error, and how often. Saying it never fails."""
