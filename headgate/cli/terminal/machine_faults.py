"""Explains exceptions that are faults of the machine, although they do not look like it. Pure."""


def machine_fault(error: BaseException) -> str | None:
    """Return what is wrong with the machine, if ``error`` says so."""
    match error:
        case MemoryError():
            return "out of memory: this process reached its limit (ulimit -v, MemoryMax) or that of the machine"
        case RuntimeError() if "can't start new thread" in str(error):
            return "no new thread: this process reached its limit of memory (ulimit -v) or of threads (TasksMax)"
        case OverflowError() if "timestamp too large" in str(error):
            return "the clock of this machine is beyond the year 2262: set it"
        case _:
            return None
