"""Who should hold what: targets, handovers and key-bucket splits. Pure."""
