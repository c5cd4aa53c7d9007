"""Speculative decoding: guesses at the next tokens of a request, which one step checks all at once."""
