"""Plans the devices' memory."""
