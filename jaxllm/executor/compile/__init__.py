"""The compiled programs of an engine."""
