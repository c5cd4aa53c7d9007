"""Batches that run in a server, over uploaded files: OpenAI's /v1/batches."""
