"""MQTT devices: clients without headgate's library."""
