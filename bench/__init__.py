"""Benchmarks: each measures headgate against something comparable, in the same process.

Each package is a subject, and each of its modules is one benchmark: a docstring that states what is compared and
why, and a `BENCHMARK` with its goal and its measuring function. `python -m bench` lists them by subject.
What they share is in `bench.harness`. A goal is what users need, and stays while it is missed.
"""
