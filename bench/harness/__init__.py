"""What the benchmarks share: the definition of a benchmark, their clusters, loads and clients."""
