"""The EAGLE-3 head that guesses for the demo model: its network, its training and its figures."""
