"""Everything between a person's text and token ids: tokenizer, LLM, processes, HTTP, command line."""
