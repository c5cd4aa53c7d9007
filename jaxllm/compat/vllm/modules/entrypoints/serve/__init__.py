"""For servers of one's own."""
