"""The cluster as one daemon sees it: its configuration, the other daemons, and what all of them report."""
