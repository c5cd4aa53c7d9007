"""What runs a server of one's own."""
