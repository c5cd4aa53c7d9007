"""How complex a grammar is, as its text tells: so that what is refused is the same everywhere, and says why."""
