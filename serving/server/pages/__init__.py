"""Pages for people with a browser: what the server is, and what it can be asked. They need nothing from elsewhere."""
