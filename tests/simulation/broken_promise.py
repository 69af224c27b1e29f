"""The error of a simulation that broke an invariant."""


class InvariantViolationError(AssertionError):
    """A promise of headgate was broken."""
