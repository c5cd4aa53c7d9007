"""Cases of paged attention that tests, tuning and benchmarks share, and how exact each must be."""

from jaxllm.pallas_kernels.paged_attention.inputs import Case, Inputs, abstract_inputs, make_inputs, minimum_bytes

__all__ = [
    "BENCHMARK_CASES",
    "CASES",
    "LONG_CASES",
    "MODEL_HEADS",
    "TOLERANCES",
    "Case",
    "Inputs",
    "abstract_inputs",
    "make_inputs",
    "minimum_bytes",
    "tolerance",
]

TOLERANCES: dict[str, dict[str, float]] = {
    "float32": dict.fromkeys(("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"), 5e-6),
    "bfloat16": dict.fromkeys(("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"), 3e-2),
    "float16": dict.fromkeys(("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"), 4e-3),
}
"""Largest absolute error of a result, by the type of the queries and that of the cache, against float64 on the stored
values. Values are normal with variance 1, so that results are at most about 4, and bfloat16 rounds off up to 0.008; the
rest is for scores and weights in bfloat16. Float16 has three bits more. A cache type costs nothing: its values convert
exactly."""


def tolerance(case: Case) -> float:
    """Largest absolute error of a result of `case`."""
    return TOLERANCES[case.dtype][case.cache_dtype.name]


_MIXED = ((1, 5), (1, 0), (1, 33), (7, 0), (70, 3), (3, 29))
_SHARED_PREFIX = ((1, 260), (1, 300), (1, 20), (1, 256), (1, 389), (1, 257), (20, 256), (3, 31))
_CHUNKED = ((1, 90), (1, 31), (1, 32), (70, 0), (2, 63), (5, 60), (30, 95), (3, 33))
_FEW = ((1, 20), (1, 47), (17, 9), (20, 0))

_BATCHES: tuple[Case, ...] = (
    Case("one_decode", ((1, 9),)),
    Case("decodes", ((1, 0), (1, 1), (1, 15), (1, 16), (1, 130), (1, 17))),
    Case("many_decodes", tuple((1, 7 * i % 41) for i in range(37)), padding_tokens=27, padding_rows=27),
    Case("prefill", ((130, 0),)),
    Case("prefill_chunk", ((65, 61),)),
    Case("prefills", ((5, 0), (64, 0), (65, 0), (2, 300))),
    Case("mixed", _MIXED, padding_tokens=5, padding_rows=3),
    Case("shared_prefix", _SHARED_PREFIX, prefix=256, padding_tokens=3, padding_rows=2),
    Case("empty", (), padding_tokens=8, padding_rows=4),
    Case("empty_rows", ((1, 5), (0, 20), (3, 4), (0, 0), (2, 17)), padding_tokens=2),
)

_SHAPES: tuple[Case, ...] = (
    Case("group_1", _MIXED, num_heads=3, num_kv_heads=3),
    Case("group_3", _FEW, num_heads=6, num_kv_heads=2),
    Case("group_5", _FEW, num_heads=5, num_kv_heads=1),
    Case("group_7", _FEW, num_heads=14, num_kv_heads=2, dtype="bfloat16"),
    Case("group_16", _FEW, num_heads=32, num_kv_heads=2),
    Case("multi_query", _MIXED, num_heads=8, num_kv_heads=1),
    Case("wide_multi_query", _FEW, num_heads=16, num_kv_heads=1, dtype="bfloat16"),
    Case("head_32", _FEW, num_heads=6, num_kv_heads=3, head_size=32, sinks=True),
    Case("head_64_four_kv_heads", _MIXED, num_heads=8, num_kv_heads=4, dtype="bfloat16"),
    Case("head_80", _MIXED, head_size=80),
    Case("head_96", _FEW, head_size=96, dtype="bfloat16"),
    Case("head_128", _MIXED, head_size=128, dtype="bfloat16"),
    Case("head_256", _FEW, head_size=256, dtype="bfloat16"),
    Case("page_32", _FEW, page_size=32),
    Case("page_64", _MIXED, page_size=64, dtype="bfloat16"),
    Case("page_128", ((1, 300), (40, 100)), page_size=128),
    Case("page_256", ((1, 300), (40, 100)), page_size=256, dtype="bfloat16"),
)

_SCORES: tuple[Case, ...] = (
    Case("window", _MIXED, window=8, padding_tokens=1),
    Case("window_traced", _MIXED, window=8, traced=True),
    Case("window_zero", _FEW, window=0, traced=True),
    Case("window_one", _MIXED, window=1),
    Case("long_window", ((1, 300), (40, 280)), window=33),
    Case("window_null_pages", ((1, 300), (1, 90), (40, 280), (5, 30)), window=33, unseen_are_null=True),
    Case("chunks_null_pages", _CHUNKED, chunk=32, unseen_are_null=True, dtype="bfloat16"),
    Case(
        "chunks_every_score", _CHUNKED, chunk=16, soft_cap=5.0, sinks=True, alibi=True, padding_tokens=7, padding_rows=2
    ),
    Case("soft_cap", _MIXED, soft_cap=5.0),
    Case("soft_cap_window", _MIXED, soft_cap=5.0, window=20, traced=True),
    Case("sinks", _MIXED, sinks=True),
    Case("sinks_window", ((1, 200), (1, 3), (50, 120)), num_heads=16, sinks=True, window=128, traced=True),
    Case("sinks_padding", ((1, 5), (3, 4)), sinks=True, padding_tokens=4, padding_rows=2),
    Case("alibi", _MIXED, alibi=True),
    Case("alibi_multi_query", _FEW, num_heads=8, num_kv_heads=1, alibi=True, dtype="bfloat16"),
    Case("shared_prefix_scores", _SHARED_PREFIX, prefix=256, num_heads=8, soft_cap=5.0, sinks=True, alibi=True),
    Case("every_score", _FEW, window=24, soft_cap=5.0, sinks=True, alibi=True),
)

# Scales are powers of two: dividing by them is exact, so that all backends must store the very same numbers.
_TYPES: tuple[Case, ...] = (
    Case("bfloat16", _MIXED, dtype="bfloat16"),
    Case("bfloat16_cache", _FEW, kv_dtype="bfloat16"),
    Case("scaled", _FEW, k_scale=0.5, v_scale=4.0),
    Case("e4m3", _MIXED, dtype="bfloat16", kv_dtype="float8_e4m3fn"),
    Case("e4m3_clipped", _FEW, kv_dtype="float8_e4m3fn", k_scale=2**-8, v_scale=2**-7),
    Case("e5m2", _FEW, dtype="bfloat16", kv_dtype="float8_e5m2", k_scale=0.25, v_scale=2.0, traced=True),
    Case("int8", _MIXED, dtype="bfloat16", kv_dtype="int8", k_scale=2**-5, v_scale=2**-4),
    Case("shared_prefix_e4m3", _SHARED_PREFIX, prefix=256, num_heads=6, kv_dtype="float8_e4m3fn"),
    Case("int8_three_kv_heads", _FEW, num_heads=9, num_kv_heads=3, kv_dtype="int8", k_scale=2**-5, v_scale=2**-4),
    Case("int8_traced", _FEW, kv_dtype="int8", k_scale=2**-5, v_scale=2**-4, traced=True),
    Case("int8_sinks_window", _FEW, kv_dtype="int8", k_scale=2**-5, v_scale=2**-4, sinks=True, window=24),
    Case("int8_by_token", _MIXED, kv_dtype="int8", scale_bytes=4, padding_tokens=5, padding_rows=3),
    Case("int8_by_token_bfloat16", _SHARED_PREFIX, prefix=256, dtype="bfloat16", kv_dtype="int8", scale_bytes=4),
    Case(
        "int8_by_token_every_score",
        _FEW,
        window=24,
        soft_cap=5.0,
        sinks=True,
        alibi=True,
        kv_dtype="int8",
        scale_bytes=8,
    ),
    Case("int8_by_token_head_128", _FEW, head_size=128, page_size=64, num_heads=6, kv_dtype="int8", scale_bytes=4),
    Case("e4m3_head_128", _FEW, head_size=128, dtype="bfloat16", kv_dtype="float8_e4m3fn", soft_cap=5.0, k_scale=0.5),
    Case("e4m3_every_score", _FEW, window=24, soft_cap=5.0, sinks=True, alibi=True, kv_dtype="float8_e4m3fn"),
)

_IMAGES = ((1, 33), (140, 0), (70, 90), (5, 16), (40, 20))
_IN_IMAGES = ((1, 3, 90), (1, 100, 139), (2, 90, 120), (2, 130, 160), (3, 16, 21), (4, 33, 47))

_SPANS: tuple[Case, ...] = (
    Case("spans", _IMAGES, spans=_IN_IMAGES, padding_tokens=5),
    Case("spans_window", ((1, 200), (160, 40)), spans=((1, 60, 130), (1, 130, 190)), window=24, padding_rows=2),
    Case("spans_small_window", ((140, 0),), spans=((0, 20, 120),), window=8, traced=True, dtype="bfloat16"),
    Case("spans_whole_prompts", ((1, 9), (100, 0), (33, 0)), spans=((1, 0, 100), (2, 0, 33)), num_kv_heads=1),
    Case("spans_every_score", ((90, 10),), spans=((0, 30, 77),), window=40, soft_cap=5.0, sinks=True, alibi=True),
    Case("spans_head_256", ((1, 20), (75, 9)), spans=((1, 20, 84),), head_size=256, dtype="bfloat16"),
    Case("spans_int8_by_token", ((1, 5), (80, 16)), spans=((1, 16, 70),), kv_dtype="int8", scale_bytes=4, num_heads=6),
    Case("spans_e4m3", ((80, 16),), spans=((0, 20, 70),), dtype="bfloat16", kv_dtype="float8_e4m3fn", page_size=32),
)

_DRAFTS = ((1, 5), (1, 0), (1, 256), (4, 33), (3, 126), (4, 254), (2, 15), (4, 0), (2, 511), (70, 3), (2, 20))
"""Tokens on both sides of the ends of pages, and of blocks of keys; those after the long row are not short."""

_SHORT: tuple[Case, ...] = (
    Case("short", _DRAFTS, padding_tokens=3, padding_rows=2, most_short=4),
    Case("short_window", _DRAFTS, window=24, dtype="bfloat16", unseen_are_null=True, most_short=4),
    Case(
        "short_every_score",
        _DRAFTS,
        window=130,
        soft_cap=5.0,
        sinks=True,
        alibi=True,
        dtype="bfloat16",
        most_short=4,
    ),
    Case("short_spans", ((1, 5), (4, 33), (3, 12), (20, 0)), spans=((2, 12, 15), (3, 2, 19)), most_short=4),
)

_LONG = Case("long", ((1, 4000), (1, 20), (9, 2990)), num_kv_heads=1, head_size=128, page_size=64, dtype="bfloat16")

CASES: tuple[Case, ...] = (*_BATCHES, *_SHAPES, *_SCORES, *_SPANS, *_TYPES, *_SHORT, _LONG)
"""Every feature and the combinations that matter, at sizes that an interpreter of kernels can bear."""

LONG_CASES: tuple[Case, ...] = (
    Case("128k", ((1, 131071), (5, 131067)), num_heads=2, num_kv_heads=1, page_size=256, dtype="bfloat16"),
    Case("128k_window", ((1, 131071), (5, 131067)), num_heads=2, num_kv_heads=1, page_size=256, window=1000),
)
"""Contexts of 128k tokens: a few hundred MB each."""

MODEL_HEADS: dict[str, tuple[int, int, int]] = {
    "llama_3_8b": (32, 8, 128),
    "llama_3_70b_tp8": (8, 1, 128),
    "qwen3_0.6b": (16, 8, 128),
    "qwen3_8b": (32, 8, 128),
    "qwen3_32b": (64, 8, 128),
}
"""Query heads, KV heads and head size on one device."""

_BENCHMARKS: dict[str, tuple[tuple[int, int], ...]] = {
    "decode_1x8k": ((1, 8191),),
    "decode_8x8k": ((1, 8191),) * 8,
    "decode_64x1k": ((1, 1023),) * 64,
    "decode_64x4k": ((1, 4095),) * 64,
    "drafts_8x8k": ((4, 8188),) * 8,
    "drafts_64x1k": ((4, 1020),) * 64,
    "prefill_2k": ((2048, 0),),
    "prefill_chunk": ((2048, 6144),),
    "mixed": (*((1, 2047),) * 32, (1000, 0), (1016, 3000)),
}

BENCHMARK_CASES: tuple[Case, ...] = tuple(
    Case(
        f"{model}-{name}",
        rows,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        page_size=64,
        dtype="bfloat16",
        layers=2,
        most_short=4 if name.startswith("drafts") else 1,
    )
    for model, (num_heads, num_kv_heads, head_size) in MODEL_HEADS.items()
    for name, rows in _BENCHMARKS.items()
)
"""Shapes of real models, for compiling (`abstract_inputs`), tuning and benchmarks. A cache takes 64 MB to 2 GB."""
