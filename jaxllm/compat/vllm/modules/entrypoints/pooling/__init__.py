"""For clients of models that pool."""
