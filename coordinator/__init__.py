"""One subscription: which segments may be read, who should read them, and how they change hands."""
