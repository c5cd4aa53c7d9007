"""The server of OpenAI's interface."""
