"""Logits processors: an operator's code that changes scores before tokens are chosen. See docs/logits_processors.md."""
