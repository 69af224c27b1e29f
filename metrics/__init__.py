"""Instruments, and the HTTP endpoint that shows them."""
