"""Describe, explain and plan subscriptions for operators. Pure."""
