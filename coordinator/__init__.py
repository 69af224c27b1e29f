"""One subscription: which segments are readable, by which consumer, and how they move."""
