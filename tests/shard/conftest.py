"""Coordinators, for tests of what a subscription decides."""

from tests.coordinator.conftest import lead

__all__ = ["lead"]
