"""Grammars in llama.cpp's form (GBNF), written in llguidance's: rules are about characters, and nothing is greedy."""
