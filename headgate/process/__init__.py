"""What a program runs: background tasks and child processes."""
