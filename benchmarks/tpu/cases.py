"""The attention calls that are measured: model shapes and what the rows of one step ask for."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jaxllm.pallas_kernels.chips import Chip

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Model:
    """Attention of one model on one device: N query heads, K KV heads of size H, bfloat16."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_size: int = 128


MODELS = {
    model.name: model
    for model in (
        Model("llama-3-8b", 32, 8),
        Model("llama-3-70b-tp8", 8, 1),
        Model("qwen3-8b", 32, 8),
        Model("qwen3-0.6b", 16, 8),
        Model("qwen3-30b-a3b", 32, 4),
        Model("llama-3.2-1b", 32, 8, 64),
    )
}
"""By name. Qwen3-8B has the attention of Llama-3-8B, so that only its smaller and sparse sisters add a shape."""


NARROW = {"fp8": "float8_e4m3fn", "int8": "int8"}
"""Types of caches in 8 bits by the ends of the names of cases, and as NumPy calls them."""


@dataclass(frozen=True)
class Case:
    """One call of attention.

    Attributes:
        name: What `--case` takes.
        model: Shapes.
        page_size: Tokens per page (C).
        rows: Per row (new tokens, tokens in the cache once they are written); rows with one new token first.
        kv_dtype: Of the cache.
        most_short: New tokens of a row that the decode kernel computes together, at most.
    """

    name: str
    model: Model
    page_size: int
    rows: tuple[tuple[int, int], ...]
    kv_dtype: str = "bfloat16"
    most_short: int = 1

    @property
    def num_tokens(self) -> int:
        """New tokens of all rows."""
        return sum(new for new, _ in self.rows)

    @property
    def pages_per_row(self) -> int:
        """Width of the page table: what the longest row needs."""
        return max(-(-length // self.page_size) for _, length in self.rows)

    @property
    def is_decode(self) -> bool:
        """Whether every row has one new token, so that memory is the bound that matters."""
        return all(new == 1 for new, _ in self.rows)

    def page_table(self) -> Ints:
        """[R, W] int32: every row has pages of its own, in an order that is mixed but always the same."""
        order = np.random.default_rng(0).permutation(len(self.rows) * self.pages_per_row) + 1
        return order.reshape(len(self.rows), self.pages_per_row).astype(np.int32)

    def query_start(self) -> Ints:
        """[R + 1] int32: first token of each row."""
        return np.cumsum([0] + [new for new, _ in self.rows]).astype(np.int32)

    def kv_lens(self) -> Ints:
        """[R] int32: tokens of each row in the cache, new ones included."""
        return np.array([length for _, length in self.rows], np.int32)

    def flops(self) -> int:
        """Operations of the two products over the (query, key) pairs that the causal mask lets through."""
        pairs = sum(new * (length - new) + new * (new + 1) // 2 for new, length in self.rows)
        return 4 * pairs * self.model.num_heads * self.model.head_size

    def least_bytes(self, itemsize: int = 2) -> int:
        """Bytes that any kernel must move: cached keys and values once, q in, the new k and v in, they and o out."""
        model = self.model
        token = 2 * model.num_kv_heads * model.head_size * (1 if self.kv_dtype in NARROW.values() else itemsize)
        query = model.num_heads * model.head_size * itemsize
        cached = sum(length - new for new, length in self.rows) * token
        return cached + self.num_tokens * (2 * query + 2 * token)

    def least_seconds(self, chip: Chip) -> float:
        """The roofline: what memory or the matrix units need at least."""
        return max(self.least_bytes() / chip.hbm_bandwidth, self.flops() / chip.bf16_flops)


def decode_case(model: str, rows: int, length: int, page_size: int) -> Case:
    """Rows with one new token each, and as many tokens as `length` with it."""
    name = f"{model}/decode-{rows}x{length}/page{page_size}"
    return Case(name, MODELS[model], page_size, ((1, length),) * rows)


def prefill_case(model: str, rows: int, new: int, length: int, page_size: int) -> Case:
    """Rows with `new` new tokens each, and as many tokens as `length` with them."""
    kind = f"prefill-{rows}x{new}" + (f"-over-{length - new}" if length > new else "")
    return Case(f"{model}/{kind}/page{page_size}", MODELS[model], page_size, ((new, length),) * rows)


def drafts_case(model: str, rows: int, new: int, length: int, page_size: int, most_short: int = 4) -> Case:
    """Decodes with drafts: `new` tokens in each row, where the decode kernel takes up to `most_short`."""
    name = f"{model}/drafts-{rows}x{new}of{most_short}-over-{length - new}/page{page_size}"
    return Case(name, MODELS[model], page_size, ((new, length),) * rows, most_short=most_short)


def narrow(case: Case, name: str) -> Case:
    """The same with a cache in 8 bits, which `NARROW` names."""
    return replace(case, name=f"{case.name}/{name}", kv_dtype=NARROW[name])


def _mixed(model: str, page_size: int) -> Case:
    rows = ((1, 1024),) * 48 + ((512, 2560), (256, 256))
    return Case(f"{model}/mixed-48+768/page{page_size}", MODELS[model], page_size, rows)


def _ragged(model: str, page_size: int) -> Case:
    """256 decodes whose lengths lie anywhere from 1 to 2047, 1024 on average."""
    lengths = np.random.default_rng(1).integers(1, 2048, 256)
    rows = tuple((1, int(length)) for length in lengths)
    return Case(f"{model}/decode-256-ragged/page{page_size}", MODELS[model], page_size, rows)


CASES = {
    case.name: case
    for case in (
        decode_case("llama-3-8b", 64, 1024, 16),
        decode_case("llama-3-8b", 64, 1024, 32),
        decode_case("llama-3-8b", 64, 1024, 64),
        decode_case("llama-3-8b", 8, 8192, 16),
        decode_case("llama-3-8b", 8, 8192, 64),
        decode_case("llama-3-8b", 256, 1024, 64),
        decode_case("llama-3-8b", 8, 1024, 64),
        drafts_case("llama-3-8b", 8, 4, 1024, 64),
        drafts_case("llama-3-8b", 8, 4, 8192, 64),
        drafts_case("llama-3-8b", 8, 1, 8192, 64),
        drafts_case("llama-3-8b", 64, 1, 1024, 64),
        drafts_case("llama-3-8b", 64, 4, 1024, 64),
        prefill_case("llama-3-8b", 8, 4, 1024, 64),
        prefill_case("llama-3-8b", 8, 4, 8192, 64),
        _ragged("llama-3-8b", 64),
        prefill_case("llama-3-8b", 1, 2048, 2048, 64),
        prefill_case("llama-3-8b", 4, 512, 8192, 64),
        _mixed("llama-3-8b", 64),
        decode_case("llama-3-70b-tp8", 64, 1024, 64),
        prefill_case("llama-3-70b-tp8", 1, 2048, 2048, 64),
        decode_case("qwen3-0.6b", 64, 1024, 64),
        decode_case("qwen3-30b-a3b", 64, 1024, 64),
        prefill_case("qwen3-30b-a3b", 1, 2048, 2048, 64),
        decode_case("llama-3.2-1b", 64, 1024, 64),
        prefill_case("llama-3.2-1b", 1, 2048, 2048, 64),
        *(
            narrow(case, name)
            for case in (
                decode_case("llama-3-8b", 64, 1024, 64),
                prefill_case("llama-3-8b", 1, 2048, 2048, 64),
                decode_case("llama-3.2-1b", 64, 1024, 64),
            )
            for name in NARROW
        ),
    )
}
"""By name."""
