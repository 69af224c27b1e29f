"""Descriptions, explanations and plans of a subscription. Pure."""
