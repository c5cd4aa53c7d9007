"""The kernel: one program for each unit of work and KV head, with an online softmax over tiles of keys.

A unit is what `gpu.plan` makes: tokens that follow each other in one row of the batch, and the tiles of keys they look
at. A program multiplies the query heads of one KV head, which share its keys. Pages are read where they lie.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from jaxllm.pallas_kernels.paged_attention.gpu.compute import LOG2E, LOWEST, MASKED, Unit
from jaxllm.pallas_kernels.paged_attention.triton.options import KernelOptions, power_of_two

Operands = dict[str, jax.Array]
"""By name:

- units: int32 [U * 8], the fields of `Unit`.
- page_table: int32 [R * W].
- query_start: int32 [R + 1].
- width: int32 [1], W.
- layer_start: int32 [1], the first of the layer's places for tokens.
- factors: float32 [2], the scale of scores times what stored keys stand for, and what stored values stand for.
- q: [T, N, H].
- kv: [L * P * C, 2K, H], the cache.
- sinks: float32 [N] in base 2, and slopes: float32 [N] times log2(e). Either may be left out.
- until: int32 [T], the end of what each token of a prompt sees, where some see later ones.
"""


def attend_decodes(options: KernelOptions, operands: Operands, *, interpret: bool) -> tuple[jax.Array, jax.Array]:
    """Attention of units with the tokens of a short row each, M of them at most.

    Returns:
        [U, K, M * G, H] normalised outputs in the type that is multiplied, and float32 [U, K, M * G] base-2 logarithms
        of the softmax denominators. What belongs to empty units or no token is unspecified. Sinks have no part in it.
    """
    units, heads = len(operands["units"]) // 8, operands["kv"].shape[1] // 2
    shape = (units, heads, options.tokens * options.group)
    out_shape = (
        jax.ShapeDtypeStruct((*shape, options.head_size), jnp.dtype(options.dtype)),
        jax.ShapeDtypeStruct(shape, jnp.float32),
    )
    out, sums = _launch(options, operands, out_shape, {}, interpret=interpret)
    return out, sums


def attend_prompts(options: KernelOptions, operands: Operands, out: jax.Array, *, interpret: bool) -> jax.Array:
    """Attention of the tokens of all units, written into `out` [T, N, H] in place."""
    aliases = {len(operands): 0}
    shape = (jax.ShapeDtypeStruct(out.shape, out.dtype),)
    return _launch(options, operands | {"out": out}, shape, aliases, interpret=interpret)[0]


def join_decodes(
    parts: tuple[jax.Array, jax.Array],
    operands: Operands,
    shape: jax.ShapeDtypeStruct,
    group: int,
    *,
    interpret: bool,
) -> jax.Array:
    """Join the parts of each row's context.

    Args:
        parts: what `attend_decodes` gives, as many units for each row.
        operands: `counts`, int32 [R], how many of them each row has; `sinks` where there are any. Where rows may have
            several tokens `rows`, int32 [T], the row of each, `query_start`, and `short`, int32 [1], their tokens.
            Otherwise token i is row i.
        shape: [T, N, H], of the result.
        group: G.
        interpret: see `attend_decodes`.

    Returns:
        The attention of tokens of short rows; zero for all others.
    """
    operands = {"out": parts[0], "sums": parts[1]} | operands
    call = pl.pallas_call(
        functools.partial(_join, tuple(operands), group),
        out_shape=shape,
        grid=(shape.shape[0], parts[0].shape[1]),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="paged_attention_join",
    )
    joined: jax.Array = call(*operands.values())
    return joined


def _join(names: tuple[str, ...], group: int, *refs: Any) -> None:
    """The work of one program: a token and a KV head."""
    inputs, result = dict(zip(names, refs, strict=False)), refs[-1]
    token, head = pl.program_id(0), pl.program_id(1)
    units, _, _, head_size = inputs["out"].shape
    rows = inputs["counts"].shape[0]
    splits = units // rows
    row, column = (jnp.arange(power_of_two(size), dtype=jnp.int32) for size in (group, head_size))
    # The row that the token is of, whether it is short, and where the token's heads are among those of the row.
    of, is_short, place = token, token < rows, row
    if "rows" in inputs:
        of, is_short = jnp.minimum(inputs["rows"][token], rows - 1), token < inputs["short"][0]
        place = jnp.where(is_short, token - inputs["query_start"][of], 0) * group + row
    is_row = row < group
    inside = is_row[:, None] & (column < head_size)[None, :]

    def visit(part: jax.Array, state: Any) -> Any:
        acc, maximum, total = state
        unit = of * splits + part
        logarithm = plgpu.load(inputs["sums"].at[unit, head, place], mask=is_row, other=MASKED)
        out = plgpu.load(inputs["out"].at[unit, head, place[:, None], column[None, :]], mask=inside, other=0.0)
        new_maximum = jnp.maximum(maximum, logarithm)
        decay, weight = jnp.exp2(maximum - new_maximum), jnp.exp2(logarithm - new_maximum)
        acc = acc * decay[:, None] + out.astype(jnp.float32) * weight[:, None]
        return acc, new_maximum, total * decay + weight

    count = jnp.where(is_short, inputs["counts"][jnp.minimum(of, rows - 1)], 0)
    state = jnp.zeros(inside.shape, jnp.float32), jnp.full(row.shape, LOWEST), jnp.zeros(row.shape, jnp.float32)
    acc, maximum, total = lax.fori_loop(0, count, visit, state)
    query_head = head * group + row
    if "sinks" in inputs:
        total = total + jnp.exp2(plgpu.load(inputs["sinks"].at[query_head], mask=is_row, other=0.0) - maximum)
    acc = acc / jnp.where(total == 0.0, 1.0, total)[:, None]
    plgpu.store(result.at[token, query_head[:, None], column[None, :]], acc.astype(result.dtype), mask=inside)


def _launch(
    options: KernelOptions, operands: Operands, out_shape: Any, aliases: dict[int, int], *, interpret: bool
) -> Any:
    names = tuple(operands)
    call = pl.pallas_call(
        functools.partial(_program, options, names),
        out_shape=out_shape,
        grid=(len(operands["units"]) // 8, operands["kv"].shape[1] // 2),
        input_output_aliases=aliases,
        compiler_params=plgpu.CompilerParams(num_warps=options.warps, num_stages=2),
        interpret=interpret,
        name="paged_attention_decode" if options.decode else "paged_attention_prefill",
    )
    return call(*operands.values())


def _program(options: KernelOptions, names: tuple[str, ...], *refs: Any) -> None:
    """The work of one program: nothing where its unit is empty."""
    inputs, outputs = dict(zip(names, refs, strict=False)), refs[len(names) :]
    number, head = pl.program_id(0), pl.program_id(1)
    unit = Unit.read(inputs["units"], number)
    pl.when(unit.first < unit.end)(lambda: _attend(options, inputs, outputs, unit, (number, head)))


def _attend(
    options: KernelOptions, inputs: dict[str, Any], outputs: Any, unit: Unit, program: tuple[jax.Array, jax.Array]
) -> None:
    """Attention of a unit for one KV head; `program` is their numbers.

    Letters: M rows of queries, S keys of a tile.
    """
    head = program[1]
    row = jnp.arange(options.rows, dtype=jnp.int32)
    ahead, of_group = lax.div(row, jnp.int32(options.group)), lax.rem(row, jnp.int32(options.group))
    query_head = head * options.group + of_group
    column = jnp.arange(options.columns, dtype=jnp.int32)
    is_column = column < options.head_size
    is_query = ahead < _tokens(options, inputs, unit)
    place = (unit.token + ahead)[:, None], query_head[:, None], column[None, :]
    inside = is_query[:, None] & is_column[None, :]
    q = plgpu.load(inputs["q"].at[place], mask=inside, other=0.0).astype(options.dtype)

    def per_head(name: str) -> jax.Array:
        return plgpu.load(inputs[name].at[query_head], mask=is_query, other=0.0)

    scale = inputs["factors"][0]
    slope = per_head("slopes") if "slopes" in inputs else None
    position, until = unit.position + ahead, None
    if "until" in inputs:
        until = plgpu.load(inputs["until"].at[unit.token + ahead], mask=is_query, other=0)
    score = functools.partial(_scores, options, unit, (position, until), scale, slope)

    def visit(tile: jax.Array, state: Any, *, masked: bool) -> Any:
        acc, maximum, total = state
        keys, values = _tile(options, inputs, unit, head, tile, column)
        scores, factor = score(_dot(q, keys, transposed=True), tile * options.tile, masked=masked)
        # The factor is applied after the maximum and together with the difference: one fused operation per score.
        new_maximum = jnp.maximum(maximum, scores.max(axis=1) * factor)
        decay = jnp.exp2(maximum - new_maximum)
        weights = jnp.exp2(scores * factor - new_maximum[:, None])
        acc = acc * decay[:, None] + _dot(weights.astype(options.dtype), values)
        return acc, new_maximum, total * decay + weights.sum(axis=1)

    # Before `full`, every key of a tile is visible to the first query, and so to all.
    full = jnp.minimum(lax.div(unit.position + 1, jnp.int32(options.tile)), unit.end)
    acc = jnp.zeros((options.rows, options.columns), jnp.float32)
    state = acc, jnp.full(options.rows, LOWEST), jnp.zeros(options.rows, jnp.float32)
    state = lax.fori_loop(unit.first, full, functools.partial(visit, masked=options.windowed), state)
    begin = jnp.maximum(unit.first, full)
    acc, maximum, total = lax.fori_loop(begin, unit.end, functools.partial(visit, masked=True), state)
    if options.decode:
        _store_part(options, outputs, program, (acc, maximum, total), inside, inputs["factors"][1])
        return
    if "sinks" in inputs:
        total = total + jnp.exp2(per_head("sinks") - maximum)
    result = acc * (inputs["factors"][1] / jnp.where(total == 0.0, 1.0, total))[:, None]
    plgpu.store(outputs[0].at[place], result.astype(outputs[0].dtype), mask=inside)


def _tokens(options: KernelOptions, inputs: dict[str, Any], unit: Unit) -> jax.Array | int:
    """How many tokens a unit has."""
    if options.tokens == 1:
        return 1
    end = inputs["query_start"][lax.div(unit.table, inputs["width"][0]) + 1]
    return jnp.minimum(end - unit.token, options.tokens)


def _store_part(
    options: KernelOptions,
    outputs: Any,
    program: tuple[jax.Array, jax.Array],
    state: tuple[jax.Array, jax.Array, jax.Array],
    inside: jax.Array,
    value_factor: jax.Array,
) -> None:
    """Write a part of a row's context, to be joined with the others."""
    acc, maximum, total = state
    empty = total == 0.0
    divisor = jnp.where(empty, 1.0, total)
    row = jnp.arange(options.rows, dtype=jnp.int32)
    column = jnp.arange(options.columns, dtype=jnp.int32)
    out, sums = outputs
    part = (acc * (value_factor / divisor)[:, None]).astype(out.dtype)
    plgpu.store(out.at[(*program, row[:, None], column[None, :])], part, mask=inside)
    logarithm = jnp.where(empty, MASKED, maximum + jnp.log2(divisor))
    plgpu.store(sums.at[(*program, row)], logarithm, mask=row < options.tokens * options.group)


def _tile(
    options: KernelOptions, inputs: dict[str, Any], unit: Unit, head: jax.Array, tile: jax.Array, column: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Keys and values [S, H] of a tile."""
    key = tile * options.tile + jnp.arange(options.tile, dtype=jnp.int32)
    page_size = jnp.int32(options.page_size)
    # The end of a last tile may lie beyond the table: whatever is read instead is masked.
    entry = jnp.minimum(unit.table + lax.div(key, page_size), inputs["page_table"].shape[0] - 1)
    page = plgpu.load(inputs["page_table"].at[entry])
    place = (inputs["layer_start"][0] + page * page_size + lax.rem(key, page_size))[:, None]
    is_column = jnp.broadcast_to((column < options.head_size)[None, :], (options.tile, options.columns))

    def read(which: int) -> jax.Array:
        at = inputs["kv"].at[place, 2 * head + which, column[None, :]]
        if options.columns == options.head_size:
            return plgpu.load(at).astype(options.dtype)
        return plgpu.load(at, mask=is_column, other=0.0).astype(options.dtype)

    return read(0), read(1)


def _scores(
    options: KernelOptions,
    unit: Unit,
    positions: tuple[jax.Array, jax.Array | None],
    scale: jax.Array,
    slope: jax.Array | None,
    products: jax.Array,
    first_key: jax.Array,
    *,
    masked: bool,
) -> tuple[jax.Array, jax.Array]:
    """Scores [M, S] of `products`, and the positive factor that makes them base-2 scores.

    `positions` are those of the queries, and the ends of what they see, unless each sees up to itself.
    """
    position, until = positions
    scores, factor = products, scale
    if options.soft_cap is not None:
        scores, factor = jnp.tanh(scores * factor), jnp.float32(options.soft_cap * LOG2E)
    distance = first_key + jnp.arange(options.tile, dtype=jnp.int32)[None, :] - position[:, None]
    if slope is not None:
        scores, factor = scores * factor + slope[:, None] * distance.astype(jnp.float32), jnp.float32(1.0)
    if masked:
        visible = distance <= 0 if until is None else distance < (until - position)[:, None]
        if options.windowed:
            visible &= distance > -unit.window
        scores = jnp.where(visible, scores, MASKED)
    return scores, factor


def _dot(a: jax.Array, b: jax.Array, *, transposed: bool = False) -> jax.Array:
    """A product with a float32 result: float32 numbers are multiplied as such, not as TF32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    product: Callable[..., jax.Array] = plgpu.dot
    return product(a, b, trans_b=transposed, precision=precision)
