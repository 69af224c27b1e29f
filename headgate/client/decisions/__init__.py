"""What a client decides: producer sessions and held segments. Pure."""
