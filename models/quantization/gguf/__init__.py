"""GGUF files, as llama.cpp has them: one file with weights, configuration and tokenizer."""
