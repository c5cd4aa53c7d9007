"""Towers: what turns images into rows that stand in place of tokens."""
