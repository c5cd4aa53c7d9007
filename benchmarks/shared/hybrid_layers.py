"""Layers of a hybrid for benchmarks: Qwen3-Next's, three with a gated delta net for each with attention, no experts."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.shared.reference_model import FEED_FORWARD, HEAD_SIZE, HIDDEN, KV_HEADS, QUERY_HEADS

KEY_HEADS, VALUE_HEADS, STATE_SIZE, WIDTH = 3, 6, 128, 4
PERIOD = 4
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "full_attention_interval": PERIOD,
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS,
    "linear_key_head_dim": STATE_SIZE,
    "linear_value_head_dim": STATE_SIZE,
    "linear_conv_kernel_dim": WIDTH,
    "mlp_only_layers": list(range(1024)),
}
"""Values of the configuration in place of the reference model's."""


def hybrid_layer(layer: int, weight: Callable[..., np.ndarray]) -> dict[str, np.ndarray]:
    """The weights of a layer by their names; `weight(*shape, scale=...)` makes one. Blocks add zeros."""
    prefix = f"model.layers.{layer}"
    # Norms multiply by one more than their weights.
    tensors = {f"{prefix}.{name}_layernorm.weight": weight(HIDDEN, scale=0) for name in ("input", "post_attention")}
    for name in ("gate", "up"):
        tensors[f"{prefix}.mlp.{name}_proj.weight"] = weight(FEED_FORWARD, HIDDEN)
    tensors[f"{prefix}.mlp.down_proj.weight"] = weight(HIDDEN, FEED_FORWARD, scale=0)
    if (layer + 1) % PERIOD == 0:
        block = f"{prefix}.self_attn"
        for name, rows in (("q", 2 * QUERY_HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{block}.{name}_proj.weight"] = weight(rows * HEAD_SIZE, HIDDEN)
        tensors[f"{block}.o_proj.weight"] = weight(HIDDEN, QUERY_HEADS * HEAD_SIZE, scale=0)
        return tensors | {f"{block}.{name}_norm.weight": weight(HEAD_SIZE, scale=0) for name in ("q", "k")}
    block, keys, values = f"{prefix}.linear_attn", KEY_HEADS * STATE_SIZE, VALUE_HEADS * STATE_SIZE
    return tensors | {
        f"{block}.in_proj_qkvz.weight": weight(2 * keys + 2 * values, HIDDEN),
        f"{block}.in_proj_ba.weight": weight(2 * VALUE_HEADS, HIDDEN),
        f"{block}.conv1d.weight": weight(2 * keys + values, 1, WIDTH),
        f"{block}.A_log": weight(VALUE_HEADS),
        f"{block}.dt_bias": weight(VALUE_HEADS),
        f"{block}.norm.weight": weight(STATE_SIZE),
        f"{block}.out_proj.weight": weight(HIDDEN, values, scale=0),
    }
