"""The web page at `/`: its files, what it asks of the server besides the API, and the stream of its live view."""
