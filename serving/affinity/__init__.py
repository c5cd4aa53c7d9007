"""Which engines have computed the beginning of a prompt: by their events of the prefix cache, or else by guesses."""
