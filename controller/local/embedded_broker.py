"""Run amqtt as the MQTT broker of `headgate up` on machines without mosquitto.

Usage: ``python -m controller.local.embedded_broker <configuration of amqtt, as JSON>``. It speaks MQTT 3.1.1 on
loopback. Suitable for trials only; install mosquitto for anything else. Limits of amqtt:

* Retained messages are lost when it stops. Clients publish theirs again on each connection.
* The queue for a slow reader is unbounded.
* A second connection of a client does not end the first one.
* A new connection gets copies of the retained messages that the filters of any client match.
* A client may take over the session of another user that has its client id.
* It would misread a CONNECT of MQTT 5, and never answer it. `read_any_connect` lets it refuse the version.
* Messages that wait for a session are lost, so records that MQTT devices publish while no daemon leads are lost.
"""

import asyncio
import json
import logging
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from amqtt.broker import Broker
from amqtt.contexts import Action, BaseContext
from amqtt.mqtt.connect import ConnectPayload, ConnectVariableHeader
from amqtt.mqtt.packet import MQTTFixedHeader
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
    """Users and rights in amqtt: it reads the same files as mosquitto (controller.local.broker_access).

    amqtt checks no right for a message that it publishes after the death of a client. So a client whose last message
    would go to a topic that it must not write is not connected at all.
    """

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
        assert session is not None, "amqtt names all three"
        assert topic is not None
        assert action is not None
        return self._allows(session.username, topic, action)

    def _allows(self, user: str | None, topic: str, action: Action) -> bool:
        rights = self._rights.get(user or "")
        return rights is not None and rights.allow(topic, action)


MQTT_3_1_1: Final = 4
_read_connect = ConnectPayload.from_stream


async def read_any_connect(
    reader: asyncio.StreamReader, fixed_header: MQTTFixedHeader | None, variable_header: ConnectVariableHeader
) -> ConnectPayload:
    """Read what follows the header of a CONNECT; return nothing of another version, which amqtt refuses next."""
    if variable_header.proto_level == MQTT_3_1_1:
        return await _read_connect(reader, fixed_header, variable_header)
    variable_header.flags = 0
    return ConnectPayload(client_id="of another version")


async def serve(config: dict[str, Any]) -> None:
    ConnectPayload.from_stream = read_any_connect
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    broker = Broker(config)
    await broker.start()
    await stop.wait()
    await broker.shutdown()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_bytes())))
