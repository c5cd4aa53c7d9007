"""Sound to text: prompts, windows, segments and what becomes of them."""
