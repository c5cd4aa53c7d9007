"""Copies of pages and states in files, which outlive the engine that wrote them."""
