"""What a step takes of the host, packed into one int32 vector."""

from dataclasses import dataclass

import numpy as np

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.packed_layout import PackedLayout
from jaxllm.executor.sampler.logprobs_mode import RAW
from jaxllm.executor.sampler.rows import FLOAT_FIELDS, INT_FIELDS
from jaxllm.requests.prompt_embeds import NO_TOKEN

FROM_DEVICE = -1
"""Input token id that stands for the token sampled last in the same slot, which the host may not know yet."""

FROM_EMBEDDINGS = NO_TOKEN
"""Input token id that stands for an embedding, which `set_embeddings` has put in the token's place."""


@dataclass(frozen=True)
class StepShape:
    """What all step executables of an engine have in common."""

    table_width: int
    """Pages in one page table of a request."""
    page_size: int
    max_logprobs: int
    sample_rows: int
    """Rows whose logits are computed at a time; the last block may be partly padding."""
    sampling: str = "xla"
    """How tokens are chosen, an implementation of `choose_tokens`."""
    logprobs_mode: str = RAW
    """Which numbers stand beside tokens, see `jaxllm.executor.sampler.logprobs_mode`."""
    num_tables: int = 1
    """Page tables of a request, which lie side by side."""
    shards: int = 1
    """Data shards. All else is of one of them, and so is a `Bucket`."""
    takes_embeddings: bool = False
    """Whether prompts may be embeddings."""

    @property
    def rows_at_once(self) -> int:
        """Rows of the page table that one call of `set_pages` writes: at most 16, and about 64 kB."""
        return max(1, min(16, 16384 // (self.num_tables * self.table_width)))

    def layout(self, bucket: Bucket) -> PackedLayout:
        """The packed input of a bucket."""
        tokens, rows = bucket.tokens, bucket.rows
        return PackedLayout(
            {
                "token_ids": ((tokens,), np.int32),
                "positions": ((tokens,), np.int32),
                "token_rows": ((tokens,), np.int32),
                "query_start": ((rows + 1,), np.int32),
                "kv_lens": ((rows,), np.int32),
                "slots": ((rows,), np.int32),
                # Where each row's last token goes, in each of its tables.
                "last_pages": ((rows,) if self.num_tables == 1 else (self.num_tables, rows), np.int32),
                "num_tokens": ((), np.int32),
                "num_decodes": ((), np.int32),
                "num_requests": ((), np.int32),
                "num_sampled": ((), np.int32),  # rows behind these get no token here
                "sampling_ints": ((len(INT_FIELDS), rows), np.int32),
                "sampling_floats": ((len(FLOAT_FIELDS), rows), np.float32),
            }
        )
