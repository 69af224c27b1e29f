"""The daemon's ZooKeeper session: its credentials, which SIGHUP reads again, and its state for health and metrics."""

import structlog

from controller.leadership.election import EventHandler
from controller.leadership.zookeeper.connection import DigestUser, ZooKeeperCredentials
from controller.leadership.zookeeper.elections import ZooKeeperElections
from controller.settings.files import read_zookeeper_tls
from controller.settings.load import Settings
from controller.settings.sections import ZooKeeperSettings
from metrics import events
from metrics.label_values import ZooKeeperState

log = structlog.get_logger(__name__)


def elections_root(settings: Settings) -> str:
    return f"/headgate/{settings.cluster.name}"


def zookeeper_credentials(settings: ZooKeeperSettings) -> ZooKeeperCredentials:
    """Read the files that ``settings`` name. Raises ConfigError if one is unusable."""
    password = settings.password()
    user = None if settings.username is None or password is None else DigestUser(settings.username, password)
    return ZooKeeperCredentials(user, read_zookeeper_tls(settings))


class ZooKeeperSession:
    """One per daemon."""

    def __init__(self, settings: Settings, observer: events.Observer) -> None:
        self._settings = settings
        self.state: ZooKeeperState = "connecting"
        self.problem: str | None = None
        """What ZooKeeper refuses this daemon, and what to do."""
        self._observer = observer
        self._elections: ZooKeeperElections | None = None

    def elections(self, instance: str, on_event: EventHandler) -> ZooKeeperElections:
        """Return the elections of the cluster, not yet entered. Raises ConfigError if a file is unusable."""
        settings = self._settings
        self._elections = ZooKeeperElections(
            settings.zookeeper.hosts,
            root=elections_root(settings),
            instance=instance,
            session_timeout_seconds=settings.zookeeper.session_timeout_seconds,
            credentials=zookeeper_credentials(settings.zookeeper),
            on_event=on_event,
        )
        return self._elections

    def use(self, credentials: ZooKeeperCredentials) -> None:
        """Use what the files contain now."""
        if self._elections is not None:
            self._elections.use(credentials)

    def set_state(self, state: ZooKeeperState) -> None:
        if state != self.state:
            log.info("zookeeper.state", state=state)
        self.state = state
        self._observer.observe(events.ZooKeeperStateChanged(state=state))

    def set_problem(self, problem: str | None) -> None:
        self.problem = problem
        self._observer.observe(events.ZooKeeperRefused(refused=problem is not None))
