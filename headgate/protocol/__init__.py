"""The wire protocol: requests, replies, announcements and MQTT topic names. Pure."""
