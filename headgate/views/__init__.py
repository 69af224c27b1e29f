"""What is shown: the structs that replies carry, `Admin` returns and the HTTP API answers with. Pure."""
