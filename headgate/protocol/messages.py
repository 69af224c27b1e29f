"""All messages of the wire protocol under one name: ``from headgate.protocol import messages as m``.

Three kinds of messages travel over the broker. A `Request` is an envelope (``request_id``,
``client_id``, ``leader_epoch``, ``protocol``) around one body. A `Reply` is an envelope
(``request_id``, ``leader_epoch``) around one body. Pushes and announcements have no envelope.
Bodies and pushes carry their kind as ``type``. The request names the client that gets the reply, so
MQTT 3.1.1 is enough. Fields may be added with a default.

The protocol promises no delivery: any message may be lost, duplicated or late, and only a reply
from the leader counts. docs/protocol.md describes it for other languages; a test holds both
together.

To add a request, change:

1. headgate/protocol/requests.py (and replies.py for a new kind of reply): the struct, and its line
   in the union;
2. its handler: a function or method that returns the reply body, with its line in the ``COMMANDS`` or
   ``handlers()`` of the same module;
3. headgate/client/admin.py and a command in controller/cli, if people use it;
4. docs/protocol.md;
5. a test of the handler, and its line in the conversation of
   tests/headgate/protocol/test_protocol_document.py.
"""

from headgate.protocol.announcements import *  # noqa: F403
from headgate.protocol.backlog import *  # noqa: F403
from headgate.protocol.codec import *  # noqa: F403
from headgate.protocol.explanations import *  # noqa: F403
from headgate.protocol.mqtt_topics import *  # noqa: F403
from headgate.protocol.replies import *  # noqa: F403
from headgate.protocol.requests import *  # noqa: F403
