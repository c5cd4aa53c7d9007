"""Output that follows a grammar: a JSON schema, a regular expression, a choice, a context-free grammar."""
