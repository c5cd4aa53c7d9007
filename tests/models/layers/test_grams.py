"""Rows of tables of n-grams are those that transformers finds, in tables of published sizes."""

import jax.numpy as jnp
import numpy as np
import torch
import transformers
from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.families.qwen4_exp import read_config
from jaxllm.models.gram_plan import WithGramsPlan
from jaxllm.models.layers.grams import gram_rows

INDEX = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128, "head_dim": 128}
OPTIONS = {**INDEX, "indexer_budget": 64, "indexer_compress_ratio": 16, "eos_token_id": 248_044}
LENGTH, TABLES = 4, 6


class Places(torch.nn.Module):
    """Stands for a table, and gives the numbers of rows."""

    weight = torch.zeros(1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows themselves."""
        return rows[..., None]


def test_rows_are_those_of_transformers() -> None:
    """Tokens of all sizes; what begins a text, or follows a separator, is another's to say."""
    own = {**OPTIONS, "ple_layer_ids": [2, 7], "ngram_size": LENGTH, "heads_per_ngram": TABLES // 3, "seed": 99}
    config = transformers.Qwen4ExpTextConfig(**own, ple_embed_dim=TABLES * 8)
    read = read_config(ConfigFile({**own, "ple_embed_dim": TABLES * 8}), "Qwen4ExpForCausalLM")
    plan = read.recurrences[5]
    assert isinstance(plan, WithGramsPlan)
    with torch.device("meta"):
        module = theirs.Qwen4ExpTextNGramEmbedding(config, config.ple_embed_dim, layer_idx=6, ple_layer_index=1)
    assert module.ngram_embedding.weight.shape == (sum(plan.grams.shards), plan.grams.size)
    module.layer_multipliers = theirs._build_layer_multipliers(config.vocab_size, LENGTH, 1, config.seed)
    module.ngram_heads_vocab_sizes = torch.tensor(module.head_vocab_sizes)
    module.ngram_heads_offsets = torch.tensor(module.head_offsets)
    module.ngram_embedding = Places()
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 2000)
    tokens[:4] = 0, 1, config.vocab_size - 1, 65_536
    wanted = module(torch.tensor(tokens[None]), None)[0].numpy()[LENGTH:]
    moved = [jnp.asarray(tokens[LENGTH - back : len(tokens) - back], jnp.int32) for back in range(LENGTH)]
    np.testing.assert_array_equal(gram_rows(plan.grams, moved), wanted)
