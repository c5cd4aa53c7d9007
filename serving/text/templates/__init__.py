"""Chat templates: programs in Jinja, from checkpoints, operators and requests, within limits of time and output."""
