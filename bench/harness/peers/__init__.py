"""Servers that programs could use instead of headgate, each with its Python client, and headgate as one of them."""
