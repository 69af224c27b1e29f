"""Who may do what: rules, the file that they come from, and the broker's configuration made from it."""
