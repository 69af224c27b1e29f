"""The subscription that moves with an export or a query: retention keeps what is unread, and ``backlog`` shows it.

It is of type QUEUE: CHECKPOINT keeps no positions, and in STREAM a child would wait for a drain that only
acknowledgements allow. One that programs consume is refused: what they have not read would count as read.
"""

from headgate.client.admin import Admin
from headgate.errors import ConfigError
from headgate.model.text import listed


async def open_own_subscription(admin: Admin, topic: str, topic_id: int, name: str) -> None:
    """Create it if it does not exist. Raises ConfigError: consumers read it.

    RequestRejectedError: the topic was deleted, and perhaps created again.
    """
    found = await admin.create_subscription(
        topic, name, type="queue", start="earliest", if_absent=True, topic_id=topic_id
    )
    if found.consumers:
        readers = listed([each.consumer for each in found.consumers])
        raise ConfigError(f"subscription {name!r} is read by {readers}: choose a name that nothing else uses")
