"""Client histories: what programs sent, and what reached their consumers, as they have written it down."""
