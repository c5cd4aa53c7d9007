"""What fits into the devices' memory."""
