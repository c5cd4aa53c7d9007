"""Dense layers behind the pooling of an embedder, in the folders that sentence-transformers writes (`2_Dense`).

Format: https://sbert.net/docs/package_reference/sentence_transformer/models.html#sentence_transformers.models.Dense.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.loading import tensors_in
from jaxllm.models.errors import ModelError
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
    """One layer: the folder of its weights inside the model's, its sizes, and its activation's name."""

    path: str
    in_size: int
    out_size: int
    bias: bool
    activation: str


def read_dense(folder: Path, path: str) -> DenseLayer:
    """The layer in `folder / path`. Raises `ModelError` for what is not supported."""
    file = ConfigFile.read(folder / path / "config.json")
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
            x = ACTIVATIONS[activation](layer(x))
        return x


def projection_weights(folder: Path, layers: Sequence[DenseLayer]) -> dict[tuple[str | int, ...], np.ndarray]:
    """Parameters of a `Projection` by their path in it. Raises `ModelError` for what is missing or of another shape."""
    found: dict[tuple[str | int, ...], np.ndarray] = {}
    for index, layer in enumerate(layers):
        tensors = {tensor.name: tensor for tensor in tensors_in(folder / layer.path)}
        shapes: dict[str, tuple[int, ...]] = {"weight": (layer.out_size, layer.in_size)}
        if layer.bias:
            shapes["bias"] = (layer.out_size,)
        for name, shape in shapes.items():
            tensor = tensors.get(f"linear.{name}")
            if tensor is None or tensor.shape != shape:
                held = "is not there" if tensor is None else f"has shape {list(tensor.shape)}"
                raise ModelError(f"{folder / layer.path}: linear.{name} {held}, expected {list(shape)}")
            found["layers", index, name] = tensor.read(np.dtype(np.float32))
    return found
