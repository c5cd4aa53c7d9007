"""Load tests under many settings."""
