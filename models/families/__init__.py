"""Model families, one file each, and their registry."""
