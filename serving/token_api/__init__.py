"""Tokens in, tokens out: prompts rendered for another server, generation of token ids, and replies read of them."""
