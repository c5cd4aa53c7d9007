"""Nothing is reported to anybody."""
