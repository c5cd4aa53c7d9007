"""Cases of paged attention that tests, tuning and benchmarks share."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch


@dataclass(frozen=True)
class Case:
    """One batch: per row the tokens it brings and the tokens already in the cache."""

    name: str
    rows: tuple[tuple[int, int], ...]
    """(new tokens, computed tokens) per row; rows of one token are decodes and come first."""
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    page_size: int = 4
    padding_tokens: int = 0
    padding_rows: int = 0
    window: int | None = None
    soft_cap: float | None = None
    dtype: str = "float32"
    layers: int = 2
    seed: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding."""
        return sum(new for new, _ in self.rows)


_MIXED = ((1, 5), (1, 0), (1, 33), (7, 0), (70, 3), (3, 29))

CASES: tuple[Case, ...] = (
    Case("one_decode", ((1, 9),)),
    Case("decodes", ((1, 0), (1, 1), (1, 3), (1, 4), (1, 130), (1, 17))),
    Case("many_decodes", tuple((1, 7 * i % 41) for i in range(37)), padding_tokens=27, padding_rows=27),
    Case("prefill", ((130, 0),)),
    Case("prefill_chunk", ((65, 61),)),
    Case("prefills", ((5, 0), (64, 0), (65, 0), (2, 300))),
    Case("mixed", _MIXED, padding_tokens=5, padding_rows=3),
    Case("empty", (), padding_tokens=8, padding_rows=4),
    Case("window", _MIXED, window=8, padding_tokens=1),
    Case("window_one", _MIXED, window=1),
    Case("long_window", ((1, 300), (40, 280)), window=33),
    Case("soft_cap", _MIXED, soft_cap=5.0),
    Case("multi_head", _MIXED, num_heads=3, num_kv_heads=3),
    Case("multi_query", _MIXED, num_heads=8, num_kv_heads=1),
    Case("wide_group", _MIXED, num_heads=16, num_kv_heads=1, head_size=64),
    Case("head_80", _MIXED, head_size=80),
    Case("page_16", _MIXED, page_size=16),
    Case("page_256", _MIXED, page_size=256),
    Case("bfloat16", _MIXED, dtype="bfloat16"),
)


@dataclass(frozen=True)
class Inputs:
    """Arrays of a case, as `paged_attention` takes them."""

    q: jnp.ndarray
    k: jnp.ndarray
    v: jnp.ndarray
    kv_cache: jnp.ndarray
    batch: RaggedBatch


def make_inputs(case: Case) -> Inputs:
    """Random arrays. Pages are shuffled, and places of the cache that hold no token are large."""
    rng = np.random.default_rng(case.seed)
    tokens = case.num_tokens + case.padding_tokens
    num_rows = len(case.rows) + case.padding_rows
    lengths = [new + computed for new, computed in case.rows]
    pages_per_row = [-(-length // case.page_size) for length in lengths]
    width = max([*pages_per_row, 1]) + 2
    num_pages = sum(pages_per_row) + 3
    shuffled = rng.permutation(np.arange(1, num_pages))
    table = np.zeros((num_rows, width), np.int32)
    cache = np.full((case.layers, num_pages, case.page_size, 2 * case.num_kv_heads, case.head_size), 1e4, np.float32)
    positions: list[int] = []
    token_rows: list[int] = []
    query_start = [0]
    used = 0
    for row, (new, computed) in enumerate(case.rows):
        table[row, : pages_per_row[row]] = shuffled[used : used + pages_per_row[row]]
        used += pages_per_row[row]
        for position in range(computed):
            page = table[row, position // case.page_size]
            cache[:, page, position % case.page_size] = rng.normal(size=(case.layers, *cache.shape[3:]))
        positions += range(computed, computed + new)
        token_rows += [row] * new
        query_start.append(len(positions))
    padding = [0] * case.padding_tokens
    batch = RaggedBatch(
        positions=jnp.asarray(positions + padding, jnp.int32),
        token_rows=jnp.asarray(token_rows + padding, jnp.int32),
        query_start=jnp.asarray(query_start + [case.num_tokens] * case.padding_rows, jnp.int32),
        kv_lens=jnp.asarray(lengths + [0] * case.padding_rows, jnp.int32),
        page_table=jnp.asarray(table),
        num_tokens=jnp.int32(case.num_tokens),
        num_decodes=jnp.int32(sum(new == 1 for new, _ in case.rows)),
        num_requests=jnp.int32(len(case.rows)),
    )

    def normal(heads: int) -> jnp.ndarray:
        return jnp.asarray(rng.normal(size=(tokens, heads, case.head_size)), case.dtype)

    return Inputs(
        normal(case.num_heads),
        normal(case.num_kv_heads),
        normal(case.num_kv_heads),
        jnp.asarray(cache, case.dtype),
        batch,
    )
