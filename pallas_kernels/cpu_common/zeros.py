"""Arrays of zeros whose memory is taken when it is first written, in large pages where there are any.

XLA fills zeros in, which takes a quarter of a second per GB, and all of the memory, long before a KV cache is full. Of
pages that a process gives back, Linux promises that they read as zeros: `MADV_DONTNEED` in madvise(2).
"""

import mmap
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.cpu_common.targets import Target, provide

# Constants of madvise(2).
_DONTNEED, _HUGEPAGE = 4, 14

# A handler as `trampoline` calls it. Its argument says how many bytes an element has; places of fields are those of
# `calls`. Pages that lie within the result are given back, what is left at its ends is cleared; if the system would not
# have them (they may be locked), all of it is.
_CODE = f"""
declare i32 @madvise(i64, i64, i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define i64 @jaxllm_handler(ptr %frame) {{
entry:
  %arguments.at = getelementptr i64, ptr %frame, i64 9
  %arguments = load ptr, ptr %arguments.at
  %argument = load ptr, ptr %arguments
  %item.at = getelementptr i64, ptr %argument, i64 3
  %item.data = load ptr, ptr %item.at
  %item.short = load i32, ptr %item.data
  %item = sext i32 %item.short to i64
  %results.at = getelementptr i64, ptr %frame, i64 14
  %results = load ptr, ptr %results.at
  %result = load ptr, ptr %results
  %data.at = getelementptr i64, ptr %result, i64 3
  %data = load ptr, ptr %data.at
  %rank.at = getelementptr i64, ptr %result, i64 4
  %rank = load i64, ptr %rank.at
  %dims.at = getelementptr i64, ptr %result, i64 5
  %dims = load ptr, ptr %dims.at
  br label %count

count:
  %axis = phi i64 [ 0, %entry ], [ %axis.next, %multiply ]
  %size = phi i64 [ %item, %entry ], [ %size.next, %multiply ]
  %is_counted = icmp eq i64 %axis, %rank
  br i1 %is_counted, label %counted, label %multiply

multiply:
  %dim.at = getelementptr i64, ptr %dims, i64 %axis
  %dim = load i64, ptr %dim.at
  %size.next = mul i64 %size, %dim
  %axis.next = add i64 %axis, 1
  br label %count

counted:
  %begin = ptrtoint ptr %data to i64
  %end = add i64 %begin, %size
  %begin.up = add i64 %begin, {mmap.PAGESIZE - 1}
  %first = and i64 %begin.up, {-mmap.PAGESIZE}
  %last = and i64 %end, {-mmap.PAGESIZE}
  %inside = sub i64 %last, %first
  %has_pages = icmp sgt i64 %inside, 0
  br i1 %has_pages, label %give_back, label %clear

give_back:
  %refused = call i32 @madvise(i64 %first, i64 %inside, i32 {_DONTNEED})
  %is_refused = icmp ne i32 %refused, 0
  br i1 %is_refused, label %clear, label %clear_ends

clear_ends:
  %before = sub i64 %first, %begin
  call void @llvm.memset.p0.i64(ptr %data, i8 0, i64 %before, i1 false)
  %last.at = inttoptr i64 %last to ptr
  %behind = sub i64 %end, %last
  call void @llvm.memset.p0.i64(ptr %last.at, i8 0, i64 %behind, i1 false)
  %ignored = call i32 @madvise(i64 %first, i64 %inside, i32 {_HUGEPAGE})
  ret i64 0

clear:
  call void @llvm.memset.p0.i64(ptr %data, i8 0, i64 %size, i1 false)
  ret i64 0
}}
"""


def _build() -> bytes:
    import llvmlite.binding as llvm

    from jaxllm.pallas_kernels.cpu_common.trampoline import target_machine

    machine = target_machine()
    code: bytes = machine.emit_object(llvm.parse_assembly(_CODE))
    return code


ZEROS = Target("jaxllm_zeros", _build, Path(__file__).parent)


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """`jnp.zeros` on the one CPU device, within a traced function."""
    if sys.platform != "linux":
        return jnp.zeros(shape, dtype)
    provide(ZEROS)
    result = jax.ShapeDtypeStruct(shape, dtype)
    array: jax.Array = jax.ffi.ffi_call(ZEROS.name, result)(jnp.full(1, dtype.itemsize, jnp.int32))
    return array
