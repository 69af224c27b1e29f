"""What a simulated cluster is found out with."""


class InvariantViolationError(AssertionError):
    """What headgate promises did not hold."""
