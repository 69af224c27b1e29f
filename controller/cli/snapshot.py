"""`headgate snapshot`: the program that daemons start to write snapshots."""

from controller.cli.program import program_command

snapshot = program_command("snapshot", "controller.snapshots.job", "Write the snapshots of shards that are due, once.")
