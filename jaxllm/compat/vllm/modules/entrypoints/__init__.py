"""Ways in: offline, and the server."""
