"""What both sides share, and what a user's program imports: Producer, Consumer and Admin."""
