"""The memory an engine needs and how fast it may be, worked out for devices that need not be there."""
