"""Prefill apart from decode: pages of prompts go from the host memory of one engine to that of another."""
