"""Dense layers after the hidden states of an embedder, mostly in folders of sentence-transformers (`2_Dense`).

Format: https://sbert.net/docs/package_reference/sentence_transformer/models.html#sentence_transformers.models.Dense.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.safetensors_file import Tensor
from jaxllm.models.errors import ModelError
from jaxllm.models.forward_context import ALL_ROWS
from jaxllm.models.layers.linear import Linear
from jaxllm.models.options import ForwardOptions

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "Identity": lambda x: x,
    "Tanh": jnp.tanh,
    "ReLU": jax.nn.relu,
    "GELU": lambda x: jax.nn.gelu(x, approximate=False),
    "Sigmoid": jax.nn.sigmoid,
}
"""By the name of PyTorch's class."""


@dataclass(frozen=True)
class DenseLayer:
    """One layer: where its weights are, its sizes, and its activation's name.

    `path` is a folder or a file inside the model's folder, and `name` begins the names of the tensors there.
    """

    path: str
    in_size: int
    out_size: int
    bias: bool
    activation: str
    name: str = "linear."


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The pooling of hidden states.

    A classifier has `labels` classes. `dense` layers follow the pooling of an embedder, `token_dense` layers are for
    vectors of single tokens, and `lexical` ones for a weight of each. With `answer_ids`, the classifier of one label is
    made of the output layer: its score is a token's logit, or by how much the second's is larger than the first's.
    """

    labels: int | None = None
    dense: tuple[DenseLayer, ...] = ()
    token_dense: tuple[DenseLayer, ...] = ()
    lexical: tuple[DenseLayer, ...] = ()
    answer_ids: tuple[int, ...] = ()

    @property
    def projections(self) -> dict[str, tuple[DenseLayer, ...]]:
        """The dense layers there are, by the name that `PoolingModel` has for them."""
        named = {"projection": self.dense, "token_projection": self.token_dense, "lexical": self.lexical}
        return {name: layers for name, layers in named.items() if layers}


def read_dense(folder: Path, path: str) -> DenseLayer:
    """The layer in `folder / path`. Raises `ModelError` for what is not supported."""
    file = ConfigFile.read(folder / path / "config.json")
    if file.boolean("use_residual", False):
        raise file.wrong("use_residual", "false")
    activation = file.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise ModelError(f"{file.source}: activation {activation!r} is not supported (known: {', '.join(ACTIVATIONS)})")
    return DenseLayer(
        path,
        file.integer("in_features"),
        file.integer("out_features"),
        bias=file.boolean("bias", True) is True,
        activation=activation,
    )


def dense_in(folder: Path, name: str) -> DenseLayer:
    """The layer without activation in the file `name`, or whose tensors in the checkpoint begin with it.

    Its sizes are those of its tensors. Raises `ModelError`.
    """
    is_file = name.endswith(".pt")
    path, beginning = (name, "") if is_file else ("", name)
    shapes = {tensor.name: tensor.shape for tensor in _tensors_in(Checkpoint(folder), path)}
    shape = shapes.get(f"{beginning}weight")
    if shape is None or len(shape) != 2:
        held = "is not there" if shape is None else f"has shape {list(shape)}"
        raise ModelError(f"{folder / path}: {beginning}weight {held}, expected a matrix")
    return DenseLayer(path, shape[1], shape[0], f"{beginning}bias" in shapes, "Identity", beginning)


class Projection(nnx.Module):
    """One layer after the other, in float32: embeddings [R, D] to [R, size of the last]."""

    def __init__(self, layers: Sequence[DenseLayer], options: ForwardOptions) -> None:
        self.activations = tuple(layer.activation for layer in layers)
        self.layers = nnx.List(
            [
                Linear(
                    layer.in_size,
                    layer.out_size,
                    bias=layer.bias,
                    dtype=jnp.dtype(jnp.float32),
                    axes=(None, None),
                    options=options,
                )
                for layer in layers
            ]
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map float32 [R, D]."""
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = ACTIVATIONS[activation](layer(x, ALL_ROWS))
        return x


def projection_weights(checkpoint: Checkpoint, layers: Sequence[DenseLayer]) -> dict[tuple[str | int, ...], np.ndarray]:
    """Parameters of a `Projection` by their path in it. Raises `ModelError` for what is missing or of another shape."""
    found: dict[tuple[str | int, ...], np.ndarray] = {}
    for index, layer in enumerate(layers):
        tensors = {tensor.name: tensor for tensor in _tensors_in(checkpoint, layer.path)}
        shapes: dict[str, tuple[int, ...]] = {"weight": (layer.out_size, layer.in_size)}
        if layer.bias:
            shapes["bias"] = (layer.out_size,)
        for name, shape in shapes.items():
            tensor = tensors.get(layer.name + name)
            if tensor is None or tensor.shape != shape:
                held = "is not there" if tensor is None else f"has shape {list(tensor.shape)}"
                raise ModelError(f"{checkpoint.folder / layer.path}: {layer.name}{name} {held}, expected {list(shape)}")
            found["layers", index, name] = tensor.read(np.dtype(np.float32))
    return found


def _tensors_in(checkpoint: Checkpoint, path: str) -> list[Tensor]:
    """The tensors in a file or a folder inside a model's folder, or of the model itself where there is no `path`."""
    place = checkpoint.folder / path
    if not path:
        return checkpoint.tensors
    return Checkpoint(place).tensors if place.is_dir() else checkpoint.tensors_in(place)
