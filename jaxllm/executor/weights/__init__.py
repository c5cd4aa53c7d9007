"""Weights that leave the devices, come back, and are replaced."""
