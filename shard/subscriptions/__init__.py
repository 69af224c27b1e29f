"""What a subscription decides: gate, registration, sessions, acknowledgements and seeks. Pure."""
