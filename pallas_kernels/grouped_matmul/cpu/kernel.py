"""Products of rows with the packed matrix of their group, see `linear.cpu.packed`.

Work items are some blocks of a group's matrix times a chunk of its rows. Groups without rows have none, so that their
weights are not read. Within an item it is as in `linear.cpu.matmul`: few rows are bound by memory, many by arithmetic,
and a result is the same sum in the same order whatever the rows alongside it.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.calls import FIRST, Kernel, argument, result, set_scratch, size
from jaxllm.pallas_kernels.cpu_common.group_table import GROUP, ITEM, ROW, WIDTH, find_entry, make_list_groups
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, set_word, word, zero_bytes
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.form import Form
from jaxllm.pallas_kernels.linear.cpu.matmul import CHUNK, aligned, scratch_bytes
from jaxllm.pallas_kernels.linear.cpu.strip import BLOCKS, DEPTH, make_strip

# Arguments of the call: x [R, in]; weights [L, G * P, in / I, 16 I] of I inputs per step; sizes int32 [G]; int32 [2]:
# layer, whether results are bfloat16.
# Results: y [R, 16 P], and the table of groups that have rows, see `group_table`.
# x is float32, or bfloat16 if the form is native. Only then may results be bfloat16.
_X, _WEIGHT, _SIZES, _INTS = range(4)
# Words of the work descriptor. P are the blocks of a group, and STRIPS the items they make.
_IN, _W, _Y, _K, _P, _STRIPS, _TABLE, _ACTIVE, _NARROW = range(FIRST, FIRST + 9)
WORDS = 9

_list_groups = make_list_groups(CHUNK)


def _make_plan(form: Form) -> Any:
    input_bytes, inputs, scratch = BLOCK * form.weight_bytes, form.inputs_per_step, scratch_bytes(form)

    @compiled
    def plan(frame: int, work: int) -> int:
        groups, depth = size(frame, _SIZES, 0), size(frame, _WEIGHT, 2) * inputs
        layer, is_narrow = int32(argument(frame, _INTS), 0), int32(argument(frame, _INTS), 1)
        total, sizes, table = size(frame, _WEIGHT, 1), argument(frame, _SIZES), result(frame, 1)
        blocks = total // groups
        strips = (blocks + BLOCKS - 1) // BLOCKS
        active = _list_groups(sizes, groups, strips, table)
        row = int32(table, WIDTH * active + ROW)
        y = result(frame, 0)
        width = (2 if is_narrow else 4) * blocks * BLOCK
        zero_bytes(y + row * width, (size(frame, _X, 0) - row) * width)
        set_word(work, _IN, argument(frame, _X))
        set_word(work, _W, argument(frame, _WEIGHT) + layer * total * depth * input_bytes)
        set_word(work, _Y, y)
        set_word(work, _K, depth)
        set_word(work, _P, blocks)
        set_word(work, _STRIPS, strips)
        set_word(work, _TABLE, table)
        set_word(work, _ACTIVE, active)
        set_word(work, _NARROW, is_narrow)
        set_scratch(work, scratch)
        return int32(table, WIDTH * active + ITEM)

    return plan


def make_kernel(form: Form) -> Kernel:
    """The kernel of a form."""
    wide = make_strip(form, BLOCKS)
    narrow = wide if BLOCKS == 1 else make_strip(form, 1)
    input_bytes, row_bytes = BLOCK * form.weight_bytes, form.row_bytes

    @compiled
    def item(work: int, index: int, scratch: int) -> None:
        table, depth, blocks = word(work, _TABLE), word(work, _K), word(work, _P)
        entry = find_entry(table, word(work, _ACTIVE), index)
        group, start = int32(table, WIDTH * entry + GROUP), int32(table, WIDTH * entry + ROW)
        rows = int32(table, WIDTH * (entry + 1) + ROW) - start
        chunks = (rows + CHUNK - 1) // CHUNK
        inner = index - int32(table, WIDTH * entry + ITEM)
        block, first = inner // chunks * BLOCKS, inner % chunks * CHUNK
        count = min(CHUNK, rows - first)
        stride, columns, is_narrow = depth * input_bytes, blocks * BLOCK, word(work, _NARROW)
        x, y_bytes = word(work, _IN) + row_bytes * (start + first) * depth, 2 if is_narrow else 4
        y = word(work, _Y) + y_bytes * ((start + first) * columns + block * BLOCK)
        weights = word(work, _W) + (group * blocks + block) * stride
        # The next chunk, or strip, of the matrix.
        after, sums = min(DEPTH, depth) * input_bytes, aligned(scratch)
        if block + BLOCKS <= blocks:
            wide(x, weights, y, 0, depth, columns, count, after, sums, is_narrow)
        else:
            for each in range(blocks - block):
                to = y + y_bytes * each * BLOCK
                narrow(x, weights + each * stride, to, 0, depth, columns, count, after, sums, is_narrow)

    @compiled
    def finish(work: int) -> None:
        pass

    return Kernel(WORDS, _make_plan(form), item, finish)
