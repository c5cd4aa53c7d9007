"""The server: its application, life cycle and worker processes."""
