"""The part that is vLLM's: its options, and the modules where its users import from."""
