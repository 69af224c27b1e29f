"""Make the broker's access configuration from the rules, so that the two cannot disagree. Pure.

The broker vouches for the user of each message: a user may publish requests and presence, and read
replies, only below its own name. What a request may do is not visible to the broker; the daemon
judges it. Devices send no requests, so the broker alone enforces their rights.

Formats: mosquitto's ``acl_file``, and the configuration of its plugin "dynamic security", without passwords.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.errors import ConfigError
from shard.access.rules import ACTIONS, ANY, AccessRules, Action, Right, Role


class BrokerFormat(StrEnum):
    ACL_FILE = "mosquitto"
    DYNAMIC_SECURITY = "dynamic-security"


class Access(StrEnum):
    """What a user may do with a topic, in the words of mosquitto."""

    READ = "read"
    WRITE = "write"
    READWRITE = "readwrite"


@dataclass(frozen=True, slots=True)
class TopicRight:
    """``access`` to everything that matches an MQTT filter."""

    access: Access
    topic_filter: str


DYNAMIC_SECURITY_TYPES: Final = {
    Access.READ: ("subscribePattern", "publishClientReceive"),
    Access.WRITE: ("publishClientSend",),
    Access.READWRITE: ("subscribePattern", "publishClientReceive", "publishClientSend"),
}


def daemon_rights(cluster: str) -> list[TopicRight]:
    base = f"headgate/{cluster}"
    return [
        TopicRight(Access.READWRITE, f"{base}/cluster"),
        TopicRight(Access.READWRITE, f"{base}/shards/+/leader"),
        TopicRight(Access.READWRITE, f"{base}/shards/+/head"),
        TopicRight(Access.WRITE, f"{base}/shards/+/chunk"),
        TopicRight(Access.READWRITE, f"{base}/shards/+/device-sentinels/+"),
        # The page sends the requests of its readers, in their names.
        TopicRight(Access.READWRITE, f"{base}/shards/+/requests/+/+"),
        TopicRight(Access.READWRITE, f"{base}/clients/+/+/replies"),
        TopicRight(Access.READWRITE, f"{base}/clients/+/+/presence"),
        TopicRight(Access.READ, f"{base}/publish/#"),
        TopicRight(Access.READ, f"{base}/devices/+/publish/#"),
        TopicRight(Access.WRITE, f"{base}/devices/+/replies/#"),
        TopicRight(Access.READ, "$SYS/broker/publish/messages/dropped"),
    ]


def user_rights(cluster: str, user: str, rights: tuple[Right, ...]) -> list[TopicRight]:
    base = f"headgate/{cluster}"
    found: list[TopicRight] = []
    if any(right.role is not Role.DEVICE for right in rights):
        found += [
            TopicRight(Access.READ, f"{base}/cluster"),
            TopicRight(Access.READ, f"{base}/shards/+/leader"),
            TopicRight(Access.READ, f"{base}/shards/+/head"),
            TopicRight(Access.WRITE, f"{base}/shards/+/requests/{user}/+"),
            TopicRight(Access.READ, f"{base}/clients/{user}/+/replies"),
            TopicRight(Access.WRITE, f"{base}/clients/{user}/+/presence"),
        ]
    if any(Action.CONSUME in ACTIONS[right.role] for right in rights):
        found.append(TopicRight(Access.READ, f"{base}/shards/+/chunk"))
    topics = sorted({topic for right in rights for topic in right.published_topics})
    if ANY in topics:
        topics = ["+"]
    if topics:
        found.append(TopicRight(Access.READ, f"{base}/devices/{user}/replies/#"))
    for topic in topics:
        found += [
            TopicRight(Access.WRITE, f"{base}/publish/{topic}/#"),
            TopicRight(Access.WRITE, f"{base}/devices/{user}/publish/{topic}/#"),
        ]
    return found


def export(rules: AccessRules, broker_format: BrokerFormat, *, cluster: str, daemon_user: str) -> str:
    """Return the broker's configuration for all users of ``rules`` and for the daemons.

    Raises ConfigError: ``daemon_user`` is in the rules as well, and would lose its own rights.
    """
    if daemon_user in rules.users:
        raise ConfigError(
            f"user {daemon_user} is the daemons' own (broker.username) and must not be in the access file: "
            "give clients users of their own"
        )
    users = {daemon_user: daemon_rights(cluster)}
    users |= {user: user_rights(cluster, user, rights) for user, rights in sorted(rules.users.items())}
    if broker_format is BrokerFormat.ACL_FILE:
        return "\n".join(_acl_lines(users)) + "\n"
    return json.dumps(_dynamic_security(users), indent=2) + "\n"


def _acl_lines(users: dict[str, list[TopicRight]]) -> Iterator[str]:
    yield "# Made by: headgate access export --format mosquitto. Change the access file instead of this one."
    for user, rights in users.items():
        yield ""
        yield f"user {user}"
        yield from (f"topic {right.access} {right.topic_filter}" for right in rights)


def _dynamic_security(users: dict[str, list[TopicRight]]) -> dict[str, object]:
    kinds = ("publishClientSend", "publishClientReceive", "subscribe", "unsubscribe")
    return {
        "defaultACLAccess": {kind: kind == "unsubscribe" for kind in kinds},
        "clients": [{"username": user, "roles": [{"rolename": f"headgate-{user}"}]} for user in users],
        "roles": [
            {
                "rolename": f"headgate-{user}",
                "acls": [
                    {"acltype": kind, "topic": right.topic_filter, "priority": 0, "allow": True}
                    for right in rights
                    for kind in DYNAMIC_SECURITY_TYPES[right.access]
                ],
            }
            for user, rights in users.items()
        ],
    }
