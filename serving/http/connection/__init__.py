"""Connections: uvicorn's protocol with limits on what a client may hold."""
