"""What is measured of the server."""
