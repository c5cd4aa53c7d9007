"""Several API server processes before one engine (`--api-server-count`)."""
