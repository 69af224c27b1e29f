"""What ZooKeeper refuses to the activities of a daemon. One problem is logged at a time."""

import structlog

log = structlog.get_logger(__name__)


class ZooKeeperRefusals:
    """The problems that last, in the order in which they began."""

    def __init__(self, hosts: str) -> None:
        """``hosts``: for log lines."""
        self.first: str | None = None
        """The problem that has lasted longest; None: ZooKeeper refuses nothing."""
        self._of_activity: dict[str, str] = {}
        self._log = log.bind(zookeeper=hosts)

    def change(self, activity: str, problem: str | None) -> bool:
        """Set the problem of ``activity``; return whether the first problem is another one now, which is logged."""
        if problem is None:
            self._of_activity.pop(activity, None)
        else:
            self._of_activity[activity] = problem
        first = next(iter(self._of_activity.values()), None)
        if first == self.first:
            return False
        self.first = first
        if first is None:
            self._log.info("zookeeper.accepted")
        else:
            self._log.error("zookeeper.refused", problem=first)
        return True
