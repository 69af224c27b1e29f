"""Settings and arguments, checked where they enter."""
