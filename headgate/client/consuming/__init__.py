"""How records arrive: requests of a member, reading, deliveries, acknowledgements and dead letters."""
