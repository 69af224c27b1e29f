"""Commands about topics and their segments."""
