"""Write chunks. Only leaders do: the readers are in headgate.ledger."""
