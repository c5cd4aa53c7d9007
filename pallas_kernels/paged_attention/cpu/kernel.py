"""The kernel: queries of a chunk and one KV head against the pages of its rows.

One algorithm for decodes and prefill chunks: an online softmax ("FlashAttention", arXiv 2205.14135) over blocks of
keys, counted from the request's first. A score is one chain of products, a weighted sum too, and what a query may not
see adds exact zeros: results do not depend on what else is in the batch, nor on how a prompt was cut.

In a page the keys of a head are stored transposed [H, C] and the values as they are [C, H] (`layout.transposed_shape`),
so both products are sums of outer products, which need nothing across lanes. Where the processor multiplies pairs of
bfloat16 as they are, two rows of that are one (`pairs.to_pairs`), and queries and weights are rounded to bfloat16.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.attention_chunks import chunk_parts, plan_chunks
from jaxllm.pallas_kernels.cpu_common.attention_softmax import adjust, scale_columns, soften, soften_narrow
from jaxllm.pallas_kernels.cpu_common.attention_words import (
    BLOCK,
    VECTORS,
    W_CHUNKS,
    W_H,
    W_INDEX_BLOCK,
    W_INDEX_GROUPS,
    W_INDEX_TOP,
    W_K,
    W_N,
    W_NEW_HEADS,
    W_NEW_K,
    W_POSITIONS,
    W_RESULTS,
    W_RUN,
    W_TOKENS,
    W_UNTIL,
    W_WRITES,
    W_WRITTEN,
    WORDS,
    first_seen,
)
from jaxllm.pallas_kernels.cpu_common.bfloat16 import PAIRS
from jaxllm.pallas_kernels.cpu_common.calls import Kernel, argument, free, result, size
from jaxllm.pallas_kernels.cpu_common.memory import compiled, fetch, fetch_add, int32, set_word, word, zero_bytes
from jaxllm.pallas_kernels.cpu_common.vectors import LANES
from jaxllm.pallas_kernels.paged_attention.cpu.chosen import chosen_parts, make_choose, read_index
from jaxllm.pallas_kernels.paged_attention.cpu.products import (
    fetch_block,
    find_values,
    make_find_block,
    make_row_tiles,
    make_score,
    make_weigh,
)
from jaxllm.pallas_kernels.paged_attention.cpu.scaled_write import make_scaled_write
from jaxllm.pallas_kernels.paged_attention.cpu.state import copy_rows, make_finish_rows, make_start_rows, tile_parts
from jaxllm.pallas_kernels.paged_attention.cpu.visible import visible_ends
from jaxllm.pallas_kernels.paged_attention.cpu.work import (
    ROWS,
    TILE,
    UNTIL,
    Q,
    block_end,
    block_parts,
    read_call,
    scratch_parts,
)
from jaxllm.pallas_kernels.paged_attention.cpu.write import make_write
from jaxllm.pallas_kernels.paged_attention.cpu.write_pairs import write_pairs


def _make_go_through(products: tuple[Any, Any], kind: str, *, scaled: bool, spans: bool, is_chosen: bool) -> Any:
    end_of, furthest = visible_ends(spans=spans)
    score, weigh = products
    find_block = make_find_block(is_chosen=is_chosen)
    weights_of = soften_narrow if kind == PAIRS else soften

    @compiled
    def go_through(
        work: int,
        row: int,
        head: int,
        first: int,
        rows: int,
        state: int,
        memory: int,
        begin: int,
        end: int,
        chosen: int,
    ) -> None:
        """Have the rows of a state, of tokens from `first` on, see the keys of a row from `begin` up to `end`.

        Or have those of a single token see all keys up to `end` of the blocks that are `chosen`.
        """
        head_size, group, positions = word(work, W_H), word(work, W_N) // word(work, W_K), word(work, W_POSITIONS)
        decays, scores, keys, values, keys_next, values_next, runs, nexts = block_parts(work, memory)
        find_block(work, row, head, begin, end, keys, values, chosen)
        fetch_block(work, keys, values)
        for start in range(begin, end, BLOCK):
            stop = min(start + BLOCK, end)
            find_block(work, row, head, start + BLOCK, end, keys_next, values_next, chosen)
            find_values(work, stop - start, values, values_next, runs, nexts)
            count_runs = (stop - start + word(work, W_RUN) - 1) // word(work, W_RUN)
            for tile in range(0, rows, TILE):
                count = min(TILE, rows - tile)
                own = first + tile // group
                # The tile's queries see no further.
                length = stop - start
                if not is_chosen:
                    length = min(stop, furthest(work, own, first + (tile + count - 1) // group + 1 - own)) - start
                if length <= 0:
                    continue
                columns = (length + LANES - 1) // LANES * LANES
                maxima, totals, queries, sums = tile_parts(work, state, tile // TILE)
                score(work, count, columns, queries, scores, keys, keys_next)
                if scaled:
                    scale_columns(count, scores, columns, keys)
                for each in range(count):
                    token = first + (tile + each) // group
                    position, last = int32(positions, token), end_of(work, token)
                    if is_chosen:
                        position, last = end - 1, end
                    adjust(work, head, (tile + each) % group, scores + 4 * each * BLOCK, columns, position, last, start)
                weights_of(count, scores, columns, maxima, totals, sums, head_size, decays)
                if scaled:
                    scale_columns(count, scores, columns, values)
                weigh(work, count, count_runs, length, scores, sums, runs, nexts)
            keys, values, keys_next, values_next = keys_next, values_next, keys, values

    return go_through


def _make_attend(products: tuple[Any, Any], kind: str, *, scaled: bool, spans: bool, is_narrow: bool) -> Any:
    go_through = _make_go_through(products, kind, scaled=scaled, spans=spans, is_chosen=False)
    _, furthest = visible_ends(spans=spans)
    start_rows = make_start_rows(is_narrow=is_narrow, paired=kind == PAIRS)
    finish_rows = make_finish_rows(is_narrow=is_narrow)

    @compiled
    def attend(work: int, chunk: int, head: int, scratch: int) -> None:
        """Results of a chunk and the query heads of one KV head."""
        group, positions = word(work, W_N) // word(work, W_K), word(work, W_POSITIONS)
        row, first, tokens, shared = chunk_parts(work, chunk)
        state, own, memory = scratch_parts(work, scratch)
        start_rows(work, first, tokens, head, state)
        begin, end = first_seen(work, int32(positions, first)) // BLOCK * BLOCK, furthest(work, first, tokens)
        if shared:
            begin, end = 0, shared
        # Shared keys for all rows, then for each the rest. A loop, since LLVM puts in what is called at every place.
        skip, count, rows = 0, tokens, state
        for turn in range(1 + tokens if shared else 1):
            if turn:
                skip, count, rows = turn - 1, 1, own
                begin, end = shared, int32(positions, first + skip) + 1
                copy_rows(work, skip * group, group, state, own)
            go_through(work, row + skip, head, first + skip, count * group, rows, memory, begin, end, 0)
            if turn or shared == 0:
                finish_rows(work, first + skip, count, head, rows)

    return attend


def _make_attend_to_chosen(products: tuple[Any, Any], kind: str, *, scaled: bool, is_narrow: bool) -> Any:
    go_through = _make_go_through(products, kind, scaled=scaled, spans=False, is_chosen=True)
    choose = make_choose(products[0], scaled=scaled)
    start_rows = make_start_rows(is_narrow=is_narrow, paired=kind == PAIRS)
    finish_rows = make_finish_rows(is_narrow=is_narrow)

    @compiled
    def attend(work: int, chunk: int, group: int, scratch: int) -> None:
        """Results of a token and a group of KV heads, to the blocks that an index chooses."""
        heads, members = word(work, W_K) // word(work, W_INDEX_GROUPS), word(work, W_N) // word(work, W_K)
        row, token, _, _ = chunk_parts(work, chunk)
        state, _, memory = scratch_parts(work, scratch)
        best, chosen = chosen_parts(work, block_end(work, memory))
        count = choose(work, row, token, group * heads, heads, memory, best, chosen)
        size, position = word(work, W_INDEX_BLOCK), int32(word(work, W_POSITIONS), token)
        for each in range(heads):
            blocks, head = chosen + 4 * each * word(work, W_INDEX_TOP), group * heads + each
            end = count * size
            if int32(blocks, count - 1) == position // size:
                # It sees its own block up to itself.
                end -= size - 1 - position % size
            start_rows(work, token, 1, head, state)
            go_through(work, row, head, token, members, state, memory, 0, end, blocks)
            finish_rows(work, token, 1, head, state)

    return attend


def _make_writer(kind: str, bytes_each: int, *, scaled: bool, is_narrow: bool) -> Any:
    if kind == PAIRS:
        return write_pairs
    return make_scaled_write(is_narrow=is_narrow) if scaled else make_write(kind, bytes_each)


def _bytes_of(kind: str, bytes_each: int, *, scaled: bool, is_narrow: bool) -> tuple[int, int, int]:
    """Bytes of a new key's number, of a result's, and of what products take of a cached key at a time."""
    activation = 2 if is_narrow else 4
    return (
        activation if scaled else bytes_each,
        activation,
        2 * bytes_each if kind == PAIRS else bytes_each,
    )


def _make_plan(bytes_each: int, sizes: tuple[int, int, int], *, spans: bool, is_chosen: bool) -> Any:
    source_bytes, result_bytes, column_bytes = sizes

    @compiled
    def plan(frame: int, work: int) -> int:
        # Tokens choose for themselves.
        read_call(frame, work, bytes_each, source_bytes, column_bytes, 1 if is_chosen else ROWS)
        if spans:
            set_word(work, W_UNTIL, argument(frame, UNTIL))
        if is_chosen:
            read_index(frame, work)
        tokens, token_bytes = word(work, W_TOKENS), result_bytes * word(work, W_N) * word(work, W_H)
        zero_bytes(result(frame, 0) + tokens * token_bytes, (size(frame, Q, 0) - tokens) * token_bytes)
        chunks = plan_chunks(work)
        items, writes, new = chunks * word(work, W_K), 0, chunks * word(work, W_NEW_HEADS)
        if is_chosen:
            items = chunks * word(work, W_INDEX_GROUPS)
        # The keys of a chunk are read by those after it, so all must be there before any chunk is computed. Where
        # every row is a single chunk, nobody else reads them, and each item writes its own, unless that is an index's.
        if word(work, W_NEW_K) and new != items:
            writes = new
        for chunk in range(1, chunks):
            if word(work, W_NEW_K) and chunk_parts(work, chunk)[0] == chunk_parts(work, chunk - 1)[0]:
                writes = new
        set_word(work, W_RESULTS, items)
        set_word(work, W_WRITES, writes)
        set_word(work, W_WRITTEN, 0)
        return items + writes

    return plan


def make_kernel(
    kind: str,
    bytes_each: int,
    *,
    scaled: bool = False,
    spans: bool = False,
    is_narrow: bool = False,
    is_chosen: bool = False,
) -> Kernel:
    """The kernel for a cache of a type (NumPy's name) of 1, 2 or 4 bytes, or for one of `PAIRS`.

    Queries and results are float32, or bfloat16 if `is_narrow`. New keys and values have the cache's type.

    If `scaled`, that is int8, each token and head has a scale in the page, and new keys and values have the type of
    queries. With `spans` there is one more argument, which says how far tokens see. If `is_chosen`, there are two more:
    the queries of an index, and its numbers.
    """
    is_narrow = is_narrow or kind == PAIRS
    write = _make_writer(kind, bytes_each, scaled=scaled, is_narrow=is_narrow)
    together, tiles = (2 if kind == PAIRS else 1), (make_row_tiles(VECTORS, kind), make_row_tiles(1, kind))
    products = make_score(*tiles, together), make_weigh(*tiles, together)
    if is_chosen:
        attend = _make_attend_to_chosen(products, kind, scaled=scaled, is_narrow=is_narrow)
    else:
        attend = _make_attend(products, kind, scaled=scaled, spans=spans, is_narrow=is_narrow)
    sizes = _bytes_of(kind, bytes_each, scaled=scaled, is_narrow=is_narrow)
    plan = _make_plan(bytes_each, sizes, spans=spans, is_chosen=is_chosen)
    groups_word = W_INDEX_GROUPS if is_chosen else W_K

    @compiled
    def item(work: int, index: int, scratch: int) -> None:
        """A chunk and one KV head: keys and values written, or results."""
        heads, writes = word(work, groups_word), word(work, W_WRITES)
        # The last tokens of a prompt see most keys, and take longest: they come first, so that nobody waits long.
        left = writes + word(work, W_RESULTS) - 1 - index
        chunk, head = left // heads, (index - writes) % heads
        if index < writes:
            chunk, head = index // word(work, W_NEW_HEADS), index % word(work, W_NEW_HEADS)
        if index < writes or (writes == 0 and word(work, W_NEW_K)):
            row, first, tokens, shared = chunk_parts(work, chunk)
            if shared:
                for token in range(tokens):
                    write(work, row + token, first + token, first + token + 1, head, scratch)
            else:
                write(work, row, first, first + tokens, head, scratch)
            fetch_add(work, W_WRITTEN, 1)
        if index < writes:
            return
        # These items come first, so whoever has taken one is at work on it.
        while fetch(work, W_WRITTEN) < writes:
            pass
        attend(work, chunk, head, scratch)

    @compiled
    def finish(work: int) -> None:
        free(word(work, W_CHUNKS))

    return Kernel(WORDS, plan, item, finish)
