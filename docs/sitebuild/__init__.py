"""Builds the site: references from the code, state diagrams as tables, and lists of pages. `make docs` uses it."""
