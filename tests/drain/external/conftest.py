"""Configures pyiceberg before it is imported."""

import tests.support.samples.lake_catalog  # noqa: F401
