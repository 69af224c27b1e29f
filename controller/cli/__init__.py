"""The command line: what runs on the machine of a daemon."""
