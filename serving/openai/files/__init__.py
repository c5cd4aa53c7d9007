"""Files that clients upload, kept on disk: OpenAI's /v1/files."""
