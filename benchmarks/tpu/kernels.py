"""The kernels that are compared, each as a function with its arguments for a case."""

import importlib
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.tpu.cases import Case

LAYERS = 2
"""Layers in the cache of kernels that take the cache of all layers: more than one, so that indexing it is compiled."""


@dataclass(frozen=True)
class Call:
    """A kernel to compile.

    Attributes:
        function: Takes `arguments`.
        arguments: A NumPy array where the value is known (lengths, page tables), a `ShapeDtypeStruct` for the rest.
        donated: Positions of arguments that are updated in place.
        choices: Block sizes and the like, in words, for the report.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...]
    choices: str


def _shape(*dims: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.dtype(dtype))


def _pages(case: Case) -> int:
    """Pages of the cache: a gibibyte of them per layer, since a small cache would be put into VMEM as a whole."""
    page_bytes = 4 * case.page_size * case.model.num_kv_heads * case.model.head_size
    return max(len(case.rows) * case.pages_per_row + 1, 2**30 // page_bytes)


def jaxllm_call(case: Case, pages: int | None = None, **blocks: Any) -> Call:
    """Our kernels; `decode_blocks` and `prefill_blocks` (`Blocks`) in place of their own choice.

    `pages` is the size of the cache, by default a gibibyte and more. What is the same in every layer is made before, as
    a model does.
    """
    from jaxllm.pallas_kernels.paged_attention import AttentionOptions, CacheGeometry, RaggedBatch, cache_shape
    from jaxllm.pallas_kernels.paged_attention.tpu.attention import tpu_paged_attention
    from jaxllm.pallas_kernels.tpu_common.batch import tpu_prepare

    model, starts, lengths = case.model, case.query_start(), case.kv_lens()
    news = np.diff(starts)
    rows = np.repeat(np.arange(len(case.rows), dtype=np.int32), news)
    positions = np.concatenate([np.arange(length - new, length) for new, length in case.rows]).astype(np.int32)
    geometry = CacheGeometry(
        LAYERS, pages or _pages(case), case.page_size, model.num_kv_heads, model.head_size, case.kv_dtype
    )
    counts = (case.num_tokens, int((news == 1).sum()), len(case.rows))
    arrays = (positions, rows, starts, lengths, case.page_table(), *counts)
    batch = tpu_prepare(RaggedBatch(*(jnp.asarray(array, jnp.int32) for array in arrays)), case.most_short)
    fields, structure = jax.tree.flatten(jax.tree.map(np.asarray, batch))

    def call(q: Any, k: Any, v: Any, cache: Any, layer: Any, *fields: Any) -> Any:
        batch = jax.tree.unflatten(structure, fields)
        return tpu_paged_attention(q, k, v, cache, layer, batch, AttentionOptions(model.head_size**-0.5), **blocks)

    new_kv = _shape(case.num_tokens, model.num_kv_heads, model.head_size)
    q = _shape(case.num_tokens, model.num_heads, model.head_size)
    cache = _shape(*cache_shape("tpu", geometry), dtype=case.kv_dtype)
    return Call(call, (q, new_kv, new_kv, cache, np.int32(1), *fields), (3,), "as tuned or chosen for the chip")


def _jax(case: Case) -> Call:
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention.tuned_block_sizes import get_tuned_block_sizes

    model = case.model
    # With its own default the kernel asks for 16 MiB of VMEM, for which its own tuned blocks are too large.
    pages, queries = get_tuned_block_sizes(
        jnp.bfloat16,
        jnp.bfloat16,
        model.num_heads,
        model.num_kv_heads,
        model.head_size,
        case.page_size,
        case.num_tokens,
        case.pages_per_row,
    )
    function = partial(
        ragged_paged_attention,
        sm_scale=model.head_size**-0.5,
        num_kv_pages_per_block=pages,
        num_queries_per_block=queries,
        vmem_limit_bytes=100 * 2**20,
    )
    arguments = (
        _shape(case.num_tokens, model.num_heads, model.head_size),
        _shape(_pages(case), case.page_size, 2 * model.num_kv_heads, model.head_size),
        case.kv_lens(),
        case.page_table(),
        case.query_start(),
        np.array([len(case.rows)], np.int32),
    )
    return Call(function, arguments, (), f"its tuned table: {pages} pages, {queries} queries; writes no k and v")


def _tpu_inference(case: Case, peer_path: Path) -> Call:
    # The package's own __init__ imports vLLM; the kernel needs none of that.
    package = types.ModuleType("tpu_inference")
    package.__path__ = [str(peer_path / "tpu_inference")]
    sys.modules["tpu_inference"] = package
    kernel = importlib.import_module("tpu_inference.kernels.ragged_paged_attention.v3.kernel")

    model = case.model
    shape = kernel.get_kv_cache_shape(_pages(case), case.page_size, model.num_kv_heads, model.head_size, jnp.bfloat16)
    decodes = sum(new == 1 for new, _ in case.rows)
    new_kv = _shape(case.num_tokens, model.num_kv_heads, model.head_size)
    arguments = (
        _shape(case.num_tokens, model.num_heads, model.head_size),
        new_kv,
        new_kv,
        _shape(*shape),
        case.kv_lens(),
        case.page_table().reshape(-1),
        case.query_start(),
        np.array([decodes, decodes, len(case.rows)], np.int32),
    )
    function = partial(kernel.ragged_paged_attention, sm_scale=model.head_size**-0.5)
    return Call(function, arguments, (3,), "its default block sizes for the chip")


def build(kernel: str, case: Case, peer_path: Path | None) -> Call:
    """The call of `kernel` (a name in `KERNELS`) for `case`.

    Raises:
        SystemExit: tpu-inference is asked for without the folder its wheel was unpacked into.
    """
    if kernel == "tpu-inference":
        if peer_path is None or not (peer_path / "tpu_inference").is_dir():
            raise SystemExit(f"--peer-path {peer_path}: no folder tpu_inference there; see --help")
        return _tpu_inference(case, peer_path)
    return _BUILDERS[kernel](case)


_BUILDERS: Mapping[str, Callable[[Case], Call]] = {"jaxllm": jaxllm_call, "jax": _jax}

KERNELS = (*_BUILDERS, "tpu-inference")
"""Names of the kernels."""
