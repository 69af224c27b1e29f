"""`Consumer.run`: calls a program's handler for records, in parallel over keys and in order within each."""
