"""Which requests run in a step, and what came of it."""
