"""The command line: what programs and people ask a cluster. Only a program imports it."""
