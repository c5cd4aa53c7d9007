"""A request: its prompt and parameters, its limits, its outputs, and who it belongs to."""
