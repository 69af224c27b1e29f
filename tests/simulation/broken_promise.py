"""The error of a simulation or an exploration that broke an invariant."""


class BrokenPromiseError(AssertionError):
    """A promise of headgate was broken."""
