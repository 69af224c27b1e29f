"""The main use case on real servers: telemetry of this machine, through splits, merges and crashes."""
