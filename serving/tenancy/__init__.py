"""Who may use the server, how much of it, and what belongs to whom."""
