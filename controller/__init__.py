"""One shard and the daemon around it: leadership, ledger writer, state, verdicts, layouts, settings, command line."""
