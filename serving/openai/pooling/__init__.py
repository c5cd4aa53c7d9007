"""The routes of models that pool."""
