"""The kernel: queries of a chunk and a group of heads against the latents of its rows.

The algorithm is that of paged attention for CPUs: an online softmax over blocks of keys counted from the request's
first, in which a score is one sum made in one order, a weighted sum one chain of products, and a key that is not seen
an exact zero. So results do not depend on what else is in the batch, nor on how a prompt was cut.

There is one copy of a latent, as it is. Scores are sums across lanes, as many of them at once as a vector has. A block
of a narrower type is made float32 first, once for all rows. Where the processor multiplies pairs of bfloat16 as they
are, scores take two numbers of a key at a time, and values two keys, whose numbers are put side by side first, once for
all rows. All scores of a block come before any weighted sum, so that what both products read stays in the first cache.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.attention_chunks import chunk_parts, plan_chunks
from jaxllm.pallas_kernels.cpu_common.attention_words import (
    BLOCK,
    W_CHUNKS,
    W_K,
    W_N,
    W_NEW_K,
    W_POSITIONS,
    W_RESULTS,
    W_TOKENS,
    W_WRITES,
    W_WRITTEN,
    first_seen,
)
from jaxllm.pallas_kernels.cpu_common.bfloat16 import PAIRS
from jaxllm.pallas_kernels.cpu_common.calls import Kernel, argument, free, result, size
from jaxllm.pallas_kernels.cpu_common.memory import compiled, fetch, fetch_add, int32, set_word, word, zero_bytes
from jaxllm.pallas_kernels.cpu_common.movers import make_movers
from jaxllm.pallas_kernels.cpu_common.vectors import LANES
from jaxllm.pallas_kernels.latent_attention.cpu.blocks import make_go_through
from jaxllm.pallas_kernels.latent_attention.cpu.state import copy_rows, make_finish_rows, make_start_rows
from jaxllm.pallas_kernels.latent_attention.cpu.work import (
    INTS,
    W_NEW_ROPE,
    W_Y,
    W_Z,
    WORDS,
    latent_at,
    read_call,
    scratch_parts,
)


def _make_write(kind: str, bytes_each: int) -> Any:
    _, line, _ = make_movers(kind, bytes_each)

    @compiled
    def write(work: int, row: int, first: int, last: int) -> None:
        """Put the latents of a row's tokens from `first` up to `last` into their pages, of float32 what is finite."""
        latent, rope = word(work, W_Z) * bytes_each, word(work, W_Y) * bytes_each
        for token in range(first, last):
            to = latent_at(work, row, int32(word(work, W_POSITIONS), token))
            for place in range(0, latent, LANES * bytes_each):
                line(to + place, word(work, W_NEW_K) + token * latent + place)
            for place in range(0, rope, LANES * bytes_each):
                line(to + latent + place, word(work, W_NEW_ROPE) + token * rope + place)

    return write


def _make_attend(kind: str, *, is_chosen: bool) -> Any:
    go_through, is_narrow = make_go_through(kind, is_chosen=is_chosen), kind == PAIRS
    start_rows, finish_rows = make_start_rows(is_narrow=is_narrow), make_finish_rows(is_narrow=is_narrow)

    @compiled
    def attend(work: int, chunk: int, group: int, scratch: int) -> None:
        """Results of a chunk and a group of query heads."""
        members, positions = word(work, W_N) // word(work, W_K), word(work, W_POSITIONS)
        row, first, tokens, shared = chunk_parts(work, chunk)
        state, own, memory = scratch_parts(work, scratch)
        start_rows(work, first, tokens, group, state)
        # Shared keys for all rows, then for each the rest. A loop, since LLVM puts in what is called at every place.
        skip, count, rows = 0, tokens, state
        # With a window nothing is shared.
        begin = first_seen(work, int32(positions, first)) // BLOCK * BLOCK
        end = shared or int32(positions, first) + tokens
        for turn in range(1 + tokens if shared else 1):
            if turn:
                skip, count, rows = turn - 1, 1, own
                begin, end = shared, int32(positions, first + skip) + 1
                copy_rows(work, skip * members, members, state, own)
            go_through(work, row + skip, first + skip, count * members, rows, memory, begin, end)
            if turn or shared == 0:
                finish_rows(work, first + skip, count, group, rows)

    return attend


def make_kernel(kind: str, bytes_each: int, *, is_chosen: bool = False) -> Kernel:
    """The kernel for a cache of a type (NumPy's name) of 2 or 4 bytes, or for one of bfloat16 that is taken as `PAIRS`.

    Queries and results are float32, or for `PAIRS` bfloat16. New latents have the cache's type. If `is_chosen`, every
    token is a row of its own, whose page table has the places of the keys that it sees; nothing is written.
    """
    write = _make_write("bfloat16" if kind == PAIRS else kind, bytes_each)
    attend = _make_attend(kind, is_chosen=is_chosen)
    result_bytes, copies = (2 if kind == PAIRS else 4), is_chosen or kind == "bfloat16"

    @compiled
    def plan(frame: int, work: int) -> int:
        read_call(frame, work, bytes_each, copies, is_chosen)
        tokens, token_bytes = word(work, W_TOKENS), result_bytes * word(work, W_N) * word(work, W_Z)
        zero_bytes(result(frame, 0) + tokens * token_bytes, (size(frame, 0, 0) - tokens) * token_bytes)
        chunks = plan_chunks(work)
        # A chunk's latents are read by those after it and by all its groups, so all are written before any is read.
        set_word(work, W_RESULTS, chunks * word(work, W_K))
        writes = chunks if int32(argument(frame, INTS), 5) else 0
        set_word(work, W_WRITES, writes)
        set_word(work, W_WRITTEN, 0)
        return writes + chunks * word(work, W_K)

    @compiled
    def item(work: int, index: int, scratch: int) -> None:
        """Latents of a chunk written, or results of a chunk and a group of heads."""
        groups, writes = word(work, W_K), word(work, W_WRITES)
        if index < writes:
            row, first, tokens, shared = chunk_parts(work, index)
            if shared:
                for token in range(tokens):
                    write(work, row + token, first + token, first + token + 1)
            else:
                write(work, row, first, first + tokens)
            fetch_add(work, W_WRITTEN, 1)
            return
        # These items come first, so whoever has taken one is at work on it.
        while fetch(work, W_WRITTEN) < writes:
            pass
        # The last tokens of a prompt see most keys, and take longest: they come first, so that nobody waits long.
        left = writes + word(work, W_RESULTS) - 1 - index
        attend(work, left // groups, left % groups, scratch)

    @compiled
    def finish(work: int) -> None:
        free(word(work, W_CHUNKS))

    return Kernel(WORDS, plan, item, finish)
