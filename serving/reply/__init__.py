"""What a model's text says: reasoning, content and calls of tools, told apart as the text comes."""
