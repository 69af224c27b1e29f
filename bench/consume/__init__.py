"""Reading records: balancing of segments, hand-overs between consumers, and reading itself."""
