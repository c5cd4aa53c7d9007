"""Names and options of other engines."""
