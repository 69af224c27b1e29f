"""What the demo, the benchmarks, the trials and the system tests have in common."""
