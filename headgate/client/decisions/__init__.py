"""Pure decisions of a client: producer sessions and held segments."""
