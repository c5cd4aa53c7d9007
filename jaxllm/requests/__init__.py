"""What a request is: its prompt and parameters, its limits, its outputs, and who it belongs to."""
