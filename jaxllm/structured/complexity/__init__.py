"""How complex a grammar is, as its text tells: so that what is rejected is the same everywhere, and says why."""
