"""Builds the site: references from the code, and lists of pages. `make docs` uses it."""
