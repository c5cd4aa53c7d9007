"""Completions: prompts in, texts out."""
