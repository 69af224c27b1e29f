"""The MQTT transport: the port and its adapters."""
