"""Benchmarks: one file each, measured side by side with what they are compared to.

Every module here whose name does not begin with an underscore is a benchmark: a docstring that says what is compared
and why, and a `BENCHMARK` with its goal and the function that measures it. `python -m bench --list` lists them.

A goal says what must not get worse: about a tenth above the highest value seen over several runs on a busy machine
when it was set. It is lowered when the code gets better, and raised only with a reason in the commit.
"""
