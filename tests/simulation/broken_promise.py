"""What a simulated cluster is found out with."""


class BrokenPromiseError(AssertionError):
    """What headgate promises did not hold."""
