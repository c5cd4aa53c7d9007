"""How families of models write calls of tools and reasoning: one file each."""
