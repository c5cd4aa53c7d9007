"""The engine: requests in, tokens out, a step at a time."""
