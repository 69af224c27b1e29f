"""The main job, end to end, on real servers: telemetry of this machine through splits, merges and crashes."""
