"""The options of the server."""
