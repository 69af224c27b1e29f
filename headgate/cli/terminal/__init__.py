"""What every command needs from a terminal: tables, questions, signals, standard streams."""
