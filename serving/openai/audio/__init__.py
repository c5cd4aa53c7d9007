"""Sound in, text out."""
