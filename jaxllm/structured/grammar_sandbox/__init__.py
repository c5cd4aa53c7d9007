"""Grammars tried in a process that may die of them, before any process that serves people compiles them."""
