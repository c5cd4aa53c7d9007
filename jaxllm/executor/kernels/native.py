"""The kernels for CPUs that a configuration needs, known to XLA before anything is compiled or read that calls them."""

from collections.abc import Callable
from pathlib import Path

from flax import nnx

from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.layers.parameter import ParameterSpec
from jaxllm.pallas_kernels.cpu_common.targets import Target, begin
from jaxllm.pallas_kernels.cpu_common.zeros import ZEROS
from jaxllm.pallas_kernels.linear.cpu.form import WEIGHT_BYTES, Form
from jaxllm.pallas_kernels.linear.cpu.packed import matmul_target
from jaxllm.pallas_kernels.paged_attention.cpu.attention import attention_target

KERNELS = "kernels"
"""Folder of object files, alongside that of the executables."""


def begin_kernels(resolved: ResolvedConfig, cache: Path | None) -> Callable[[], None]:
    """Have XLA know them, from the folder next to `cache` if an earlier start has left them there.

    They are compiled at the same time as what calls them; calling the result waits for them. Raises `ModelError` for a
    model that cannot be built.
    """
    targets = _attention(resolved) if resolved.backend("attention") == "cpu" else []
    # Activations have the type of the weights.
    form = Form(resolved.dtype, resolved.forward.multiplies_pairs)
    targets += [ZEROS, matmul_target(form)] if resolved.forward.native_matmul else []
    if resolved.forward.native_matmul and resolved.adapters is not None and resolved.adapters.dtype in WEIGHT_BYTES:
        # Few engines serve adapters: starts of others are faster without the import.
        from jaxllm.pallas_kernels.low_rank.cpu.call import low_rank_target

        targets.append(low_rank_target(resolved.adapters.dtype, is_narrow=resolved.forward.multiplies_pairs))
    if resolved.forward.native_matmul and resolved.model.expert_counts:
        # Few models have experts: starts of others are faster without the import.
        from jaxllm.pallas_kernels.grouped_matmul.cpu.packed import grouped_target

        targets.append(grouped_target(form))
    if resolved.forward.native_matmul and resolved.model.is_quantized:
        targets += _quantized_targets(resolved)
    return begin(targets, None if cache is None else cache.parent / KERNELS)


def _quantized_targets(resolved: ResolvedConfig) -> list[Target]:
    """Targets of quantized matrices, which experts share. Merged matrices may have types that no part has."""
    # Few models are quantized: starts of others are faster without the imports.
    from jaxllm.pallas_kernels.linear.cpu.quantized.call import quantized_target
    from jaxllm.pallas_kernels.linear.cpu.quantized.layout import QuantizedPacked

    _, parameters = nnx.split(abstract_model(resolved.model, resolved.forward, resolved.dtype))
    layouts = (ParameterSpec.of(variable).matrix for _, variable in nnx.to_flat_state(parameters))
    forms = dict.fromkeys(
        layout.form.reading(resolved.dtype) for layout in layouts if isinstance(layout, QuantizedPacked)
    )
    return [quantized_target(form) for form in forms]


def _attention(resolved: ResolvedConfig) -> list[Target]:
    """Targets of paged or latent attention."""
    cache, paired = resolved.cache, resolved.forward.attention == "cpu_pairs"
    if resolved.model.latent is not None or resolved.model.compressed:
        # Few models have it: starts of others are faster without the import.
        from jaxllm.pallas_kernels.latent_attention.cpu.attention import latent_attention_target

        has_index = any(plan.index for plan in resolved.model.latents)
        kinds = (True,) if resolved.model.compressed else (False, True) if has_index else (False,)
        return [latent_attention_target(cache.dtype, paired=paired, is_chosen=is_chosen) for is_chosen in kinds]
    scaled, kinds = cache.scale_bytes > 0, ((False, True) if resolved.model.index_heads else (False,))
    spans = resolved.sees_spans
    return [
        attention_target(cache.dtype, scaled=scaled, spans=spans and not is_chosen, paired=paired, is_chosen=is_chosen)
        for is_chosen in kinds
    ]
