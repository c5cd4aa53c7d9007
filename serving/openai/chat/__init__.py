"""Chat completions: a conversation in, the model's answers out."""
