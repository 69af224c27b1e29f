"""The wire protocol: requests, replies, announcements and MQTT topic names. Pure.

A `Request` and a `Reply` are envelopes around one body; pushes and announcements have none. Fields
may be added with a default. Any message may be lost, duplicated or late, and only a reply from the
leader counts. docs/protocol.md is the specification; a test compares the two.

To add a request, change: its struct and union in requests (replies for a new kind of reply), its
handler with its line in ``COMMANDS`` or ``handlers()``, its line in shard.access.rules,
headgate.client.admin, and docs/protocol.md. Tests name what is missing, among it an example of the
message in the protocol's conversation and its worst case in the benchmark ``loop_stall``.
"""
