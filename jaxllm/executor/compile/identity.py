"""The identity of an engine's executables, as plain data: engines with the same identity may share them."""

import dataclasses
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxllm.bundle.differences import CPU_FEATURES, MEASURED_BLOCKS
from jaxllm.executor.compile.executables import compiler_options
from jaxllm.executor.compile.program import ProgramSet
from jaxllm.executor.memory.capacity import devices_of
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.measured import measured_digest

SOURCES = ("models", "pallas_kernels", "pooling", "executor")
"""Packages whose code ends up in executables."""

_INSTRUCTIONS = re.compile(
    r"(adx|aes|amx|avx|bmi|cldemote|clflushopt|clwb|clzero|cx16|f16c|fma|fsgsbase|gfni|lzcnt|abm|mmx|movbe|movdir|pclmul"
    r"|popcnt|prefetchi|rdpid|rdrnd|rdseed|serialize|sha|sm3|sm4|sse|ssse|tbm|vaes|vpclmul|waitpkg|xop|xsave)"
)
"""How the names of x86 instruction sets begin in /proc/cpuinfo, as far as compilers use them."""


def engine_identity(resolved: ResolvedConfig, programs: ProgramSet[Any], num_pages: int) -> dict[str, Any]:
    """Everything the executables of an engine depend on, but for what an operator may change freely.

    Values are what JSON has. The keys are names of options where there is one.
    """
    config = resolved.config
    return {
        **software(resolved.platform),
        **_hardware(resolved),
        "model": resolved.model.architecture,
        "model_config": _digest(dataclasses.asdict(resolved.model)),
        "dtype": resolved.dtype,
        "kv_cache_dtype": resolved.kv_dtype,
        "max_model_len": resolved.max_model_len,
        "max_num_seqs": resolved.max_num_seqs,
        "max_num_batched_tokens": resolved.max_num_batched_tokens,
        "block_size": resolved.page_size,
        "num_gpu_blocks": num_pages,
        **programs.options,
        "attention_backend": resolved.forward.attention,
        "attention_checks": resolved.attention_checks,
        "sampling_backend": resolved.backend("sampling"),
        "moe_backend": resolved.backend("moe"),
        "linear_backend": resolved.backend("linear"),
        "mm_encoder_attn_backend": resolved.backend("mm_encoder_attn"),
        "bfloat16_products": config.compile.bfloat16_products,
        "layer_stack": resolved.forward.stack,
        "compiler_options": compiler_options(programs, config.compile),
        MEASURED_BLOCKS: measured_digest(),
        # Last: for what has no name above.
        "arrays": _digest([_array(*item) for item in jax.tree.leaves_with_path((programs.parameters, programs.state))]),
        "shapes": _digest(dataclasses.asdict(programs.shape)),
    }


def software(backend: str) -> dict[str, Any]:
    """Versions of what compiles and runs on a platform, as plain data."""
    packages = ("jaxllm", "jax", "jaxlib", *(("libtpu",) if backend == "tpu" else ()))
    found = {**{name: _version(name) for name in packages}, "code": _code()}
    if backend not in ("cpu", "tpu"):
        found["runtime"] = jax.devices()[0].client.platform_version
    return found


def _hardware(resolved: ResolvedConfig) -> dict[str, Any]:
    devices = devices_of(resolved)
    found: dict[str, Any] = {
        "platform": resolved.platform,
        "device_kind": devices[0].device_kind,
        # Also the order: an executable has its devices built in.
        "devices": [[device.id, *getattr(device, "coords", ())] for device in devices],
        "tensor_parallel_size": resolved.num_devices,
        "pipeline_parallel_size": resolved.config.parallel.pipeline_parallel_size,
        "expert_parallel": resolved.forward.expert_parallel,
    }
    if resolved.platform == "cpu":
        found["machine"] = platform.machine()
        found[CPU_FEATURES] = cpu_features()
    return found


def _version(package: str) -> str:
    """The version of a package; of one that is used from its sources, nothing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@cache
def _code() -> str:
    """A digest of the sources that executables are made from: other code under the same version is another engine."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in source_files(package):
        digest.update(path.removeprefix(f"{package}/").encode() + b"\0")
        with open(path, "rb") as content:  # noqa: PTH123
            digest.update(content.read())
    return digest.hexdigest()[:16]


def source_files(package: Path) -> Iterator[str]:
    """The files of the package that executables are made from, always in the same order."""
    # Hundreds of files, at every start: `Path` would take thrice as long to find them.
    for name in SOURCES:
        # Kernels have tuned block sizes as JSON; models have the demo's checkpoint.
        endings = (".py", ".json") if name == "pallas_kernels" else (".py",)
        for folder, folders, files in os.walk(package / name):
            folders.sort()
            yield from (f"{folder}/{file}" for file in sorted(files) if file.endswith(endings))


def cpu_features(path: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The instruction sets of this machine's CPU that compiled code may use; empty where the system does not tell."""
    if not path.is_file():
        return []
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        # x86 lists much besides instructions; Arm does not.
        if name.strip() == "flags":
            return sorted({flag for flag in value.split() if _INSTRUCTIONS.match(flag)})
        if name.strip() == "Features":
            return sorted(set(value.split()))
    return []


def _array(path: Any, leaf: jax.ShapeDtypeStruct) -> list[str]:
    split = leaf.sharding.spec if isinstance(leaf.sharding, NamedSharding) and leaf.sharding.num_devices > 1 else None
    return [jax.tree_util.keystr(path), str(np.dtype(leaf.dtype)), str(leaf.shape), str(split)]


def _digest(value: Any) -> str:
    """A short digest of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
