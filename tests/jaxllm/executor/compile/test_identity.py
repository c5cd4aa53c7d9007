"""When two engines may use the same executables."""

from pathlib import Path
from typing import Any

import jax
import pytest

import jaxllm
from jaxllm.bundle.differences import differences
from jaxllm.config import EngineConfig
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.compile.identity import SOURCES, _version, cpu_features, engine_identity, source_files
from jaxllm.executor.resolve import resolve_config
from jaxllm.pallas_kernels.measured import store_measured


def identity(**options: Any) -> dict[str, Any]:
    # Without options of the compiler, which depend on those of the engine.
    resolved = resolve_config(EngineConfig.from_options({"optimization_level": 3, **options}))
    return engine_identity(resolved, generation_programs(resolved, 64), 64)


def test_the_same_engine_has_no_differences() -> None:
    assert differences(identity(), identity(seed=3, strict_compilation=True, enable_prefix_caching=False)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 8}, "max_num_seqs: 64 in the bundle, 8 here"),
        ({"max_num_batched_tokens": 32}, "max_num_batched_tokens: 512 in the bundle, 32 here"),
        ({"max_model_len": 100}, "max_model_len: 2048 in the bundle, 100 here"),
        ({"block_size": 32}, "block_size: 16 in the bundle, 32 here"),
        ({"dtype": "bfloat16", "kv_cache_dtype": "float32"}, "dtype: float32 in the bundle, bfloat16 here"),
        ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype: float32 in the bundle, bfloat16 here"),
        ({"bfloat16_products": "widened"}, "bfloat16_products: auto in the bundle, widened here"),
        ({"layer_stack": "loop"}, "layer_stack: scan in the bundle, loop here"),
        (
            {"attention_backend": "reference", "layer_stack": "scan"},
            "attention_backend: cpu in the bundle, reference here",
        ),
        ({"max_logprobs": 3}, "max_logprobs: 20 in the bundle, 3 here"),
    ],
    ids=lambda value: None if isinstance(value, str) else next(iter(value)),
)
def test_options_that_shape_executables_are_named(options: dict[str, Any], message: str) -> None:
    assert differences(identity(), identity(**options)) == [message]


@pytest.mark.parametrize("name", ["jax", "jaxlib", "jaxllm", "device_kind", "machine", "model", "devices"])
def test_another_machine_or_version_is_named(name: str) -> None:
    ours = {**identity(), "devices": "ours"}
    assert differences({**ours, name: "other"}, ours) == [f"{name}: other in the bundle, {ours[name]} here"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("code", "code: made by another version of jaxllm's sources"),
        ("model_config", "model_config: for another model configuration"),
        ("arrays", "arrays: for arrays of other shapes, dtypes or shardings"),
        ("shapes", "shapes: for other step shapes"),
    ],
)
def test_a_digest_is_explained(name: str, message: str) -> None:
    ours = identity()
    assert differences({**ours, name: "0"}, ours) == [message]


def test_measured_blocks_are_another_engine_but_no_reason_to_reject_a_bundle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = identity()
    store_measured("paged_attention", "TPU v6 lite", {"key": {"kernel": "decode"}, "blocks": {}})
    assert identity() != before
    assert differences(before, identity()) == differences(identity(), before) == []


def test_consequences_of_a_difference_are_left_out() -> None:
    ours = identity()
    elsewhere = {**identity(max_num_seqs=8, dtype="bfloat16"), "platform": "tpu", "device_kind": "TPU v4"}
    assert differences(elsewhere, ours) == [
        "platform: tpu in the bundle, cpu here",
        "device_kind: TPU v4 in the bundle, cpu here",
    ]
    other = {**identity(max_num_seqs=8), "devices": [[3]]}
    assert differences(other, ours) == ["max_num_seqs: 8 in the bundle, 64 here"]


def test_a_manifest_that_says_too_little_or_too_much() -> None:
    ours = identity()
    assert differences({}, {"jax": "1"}) == ["jax: missing from the bundle"]
    assert differences({**ours, "moon": 1}, ours) == ["moon: unknown here"]


def test_a_cpu_may_have_more_instructions_but_not_fewer() -> None:
    few, many = {"cpu_features": ["avx2"]}, {"cpu_features": ["avx2", "avx512f"]}
    assert differences(few, many) == []
    assert differences(many, few) == ["cpu_features: the bundle uses instructions that this CPU lacks (avx512f)"]
    assert differences({"cpu_features": 7}, few) == [
        "cpu_features: the bundle uses instructions that this CPU lacks (7)"
    ]


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 sse4_1 hypervisor tsc\n", ["avx2", "sse4_1"]),
        ("processor\t: 0\nFeatures\t: fp asimd sve\n", ["asimd", "fp", "sve"]),
        ("processor: 0\n", []),
    ],
    ids=["x86", "arm", "unknown"],
)
def test_features_of_a_cpu(tmp_path: Path, text: str, features: list[str]) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_features(tmp_path / "cpuinfo") == features
    assert cpu_features(tmp_path / "missing") == []


def test_versions_of_packages_that_are_not_installed() -> None:
    assert _version("jax") == jax.__version__
    assert _version("no-such-package") == "not installed"


def test_every_package_whose_code_ends_up_in_executables_is_there() -> None:
    package = Path(jaxllm.__file__).parent
    assert all(any((package / name).rglob("*.py")) for name in SOURCES)


def test_of_json_only_tuned_block_sizes_count_as_sources() -> None:
    package = Path(jaxllm.__file__).parent
    found = [Path(name).relative_to(package) for name in source_files(package)]
    assert len(found) == len(set(found))
    assert Path("executor/compile/identity.py") in found
    assert (package / "models/demo/config.json").is_file()
    data = {path for path in found if path.suffix != ".py"}
    tuned = package / "pallas_kernels/tuned"
    assert data == {path.relative_to(package) for path in tuned.rglob("*.json")} != set()
