"""Token embedding, which may also serve as the output layer."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec

from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.linear import weight_of
from jaxllm.models.layers.parameter import Rows, parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import MODEL, model_parallel, padded_vocab, partition, sharding
from jaxllm.pallas_kernels.linear import Weight, choose_layout


def vocab_rows(config: ModelConfig, options: ForwardOptions) -> Rows:
    """What a matrix with a row per token adds, so that the vocabulary can be split."""
    return Rows(padding=padded_vocab(config, model_parallel(options.mesh)) - config.vocab_size)


class Embedding(nnx.Module):
    """`weight` [V, D], one row per token. With `is_output` the output layer uses it too."""

    def __init__(
        self, config: ModelConfig, options: ForwardOptions, *, dtype: jnp.dtype, is_output: bool = False
    ) -> None:
        rows = vocab_rows(config, options)
        shape = (config.vocab_size + rows.padding, config.hidden_size)
        self.layout = choose_layout(shape, dtype, native=is_output and options.native_matmul)
        self.weight = parameter(shape, dtype, sharding(options.mesh, "vocab", "hidden"), rows, self.layout)
        self.mesh = options.mesh

    @property
    def matrix(self) -> Weight:
        """The weight as an operand."""
        return weight_of(self.weight, self.layout)

    def __call__(self, token_ids: jax.Array) -> jax.Array:
        """Rows [T, D] of `token_ids` int32 [T]."""
        if model_parallel(self.mesh) == 1:
            return self.layout.rows(self.weight[...], token_ids)
        assert self.mesh is not None
        look_up = jax.shard_map(
            _look_up_shard,
            mesh=self.mesh,
            in_specs=(partition("vocab", "hidden"), PartitionSpec()),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        return look_up(self.weight[...], token_ids)


def _look_up_shard(weight: jax.Array, token_ids: jax.Array) -> jax.Array:
    """Each device gives the rows it has; the others' are zero, and the sum is the whole."""
    place = token_ids - lax.axis_index(MODEL) * weight.shape[0]
    is_here = (place >= 0) & (place < weight.shape[0])
    rows = jnp.take(weight, place, axis=0, mode="clip")
    return lax.psum(jnp.where(is_here[:, None], rows, 0), MODEL)
