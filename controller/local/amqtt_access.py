"""Users and rights in amqtt: it reads the same files as mosquitto (controller.local.broker_access).

amqtt checks no right for a message that it publishes after the death of a client. So a client whose last message would
go to a topic that it must not write is not connected at all.
"""

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path

from amqtt.contexts import Action, BaseContext
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from controller.local.broker_access import is_password
from shard.access.broker_rules import Access


@dataclass(frozen=True, slots=True)
class UserRights:
    """What one user may read and write: MQTT filters."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def allow(self, topic: str, action: Action) -> bool:
        """Return whether the user may do ``action`` with ``topic``, which may be a filter."""
        return any(covers(right, topic) for right in (self.write if action == Action.PUBLISH else self.read))


def covers(right: str, topic: str) -> bool:
    """Return whether the filter ``right`` matches everything that ``topic``, a topic or filter, matches."""
    levels, wanted = right.split("/"), topic.split("/")
    if levels[-1] == "#":
        levels, wanted = levels[:-1], wanted[: len(levels) - 1]
    return len(levels) == len(wanted) and all(
        level == other or (level == "+" and other != "#") for level, other in zip(levels, wanted, strict=True)
    )


def parse_acl(text: str) -> dict[str, UserRights]:
    """Return the rights in mosquitto's ``acl_file``, as `headgate access export` writes it: user → rights."""
    found: dict[str, UserRights] = {}
    user = ""
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "user":
            user = rest
            found[user] = UserRights()
        elif word == "topic":
            access, _, topic = rest.partition(" ")
            own = found[user]
            found[user] = UserRights(
                read=own.read + (topic,) * (access != Access.WRITE),
                write=own.write + (topic,) * (access != Access.READ),
            )
    return found


@dataclass
class Files:
    """The configuration of both plugins."""

    password_file: str
    acl_file: str


class AccessPlugin(BaseAuthPlugin, BaseTopicPlugin):
    """Authenticates users, and judges what they publish, subscribe to and receive."""

    Config = Files

    def __init__(self, context: BaseContext) -> None:
        super().__init__(context)
        self._passwords: dict[str, str] = {}
        self._rights: dict[str, UserRights] = {}
        self.read()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.read)

    def read(self) -> None:
        lines = Path(self.config.password_file).read_text().splitlines()
        self._passwords = dict(line.split(":", 1) for line in lines)
        self._rights = parse_acl(Path(self.config.acl_file).read_text())

    async def authenticate(self, *, session: Session) -> bool:
        """Return whether the password is right, and the client's last message is allowed."""
        user, password = session.username, session.password
        if user not in self._passwords or password is None or not is_password(password, self._passwords[user]):
            return False
        return session.will_topic is None or self._allows(user, session.will_topic, Action.PUBLISH)

    async def topic_filtering(
        self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None
    ) -> bool:
        """Return whether this client may do ``action`` with ``topic``."""
        assert session is not None, "amqtt names all three"
        assert topic is not None
        assert action is not None
        return self._allows(session.username, topic, action)

    def _allows(self, user: str | None, topic: str, action: Action) -> bool:
        rights = self._rights.get(user or "")
        return rights is not None and rights.allow(topic, action)
