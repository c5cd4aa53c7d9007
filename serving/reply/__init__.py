"""The parts of a model's text: reasoning, content and calls of tools, told apart as the text comes."""
