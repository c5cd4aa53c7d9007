"""Ragged paged attention: writes a step's keys and values into their pages and attends."""
