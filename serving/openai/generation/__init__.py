"""What chats, completions and responses have in common."""
