"""One subscription: which segments may be read, which consumer reads each, and how they move."""
