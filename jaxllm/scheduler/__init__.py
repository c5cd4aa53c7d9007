"""Who runs in the next step, with how many tokens, and in which pages."""
