"""Embeddings to begin with: tokens which differ in a leading space or in case only begin alike.

The same word inside a sentence (with a space), in quotes and at the start of a line is several tokens. If a small model
had to learn that from examples, it would not learn to copy words from its prompt in the time there is.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from scripts.demo_model.network import Shape

_SCALE = 0.02
_SHARED, _OWN, _SPACE = 0.9, 0.4, 0.5
"""How much of an embedding is the word's, the token's own, and the mark of a leading space."""


def initial_embedding(tokenizer: Tokenizer, shape: Shape, seed: int) -> jnp.ndarray:
    """Fresh embeddings (vocab, hidden) in float32."""
    texts = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in range(shape.vocab)]
    words = [text.strip().lower() if text.strip().isalpha() else f"#{token_id}" for token_id, text in enumerate(texts)]
    number = {word: index for index, word in enumerate(dict.fromkeys(words))}
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(len(number), shape.hidden))[[number[word] for word in words]]
    own = rng.normal(size=(shape.vocab, shape.hidden))
    space = np.outer([text.startswith(" ") for text in texts], rng.normal(size=shape.hidden))
    return jnp.asarray(_SCALE * (_SHARED * shared + _OWN * own + _SPACE * space), jnp.float32)
