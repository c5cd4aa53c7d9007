"""Stage `attention`: the attention that `auto` chooses here, on every case, with the model's heads or latents."""

import jax
import msgspec

from jaxllm.doctor.attention_cases import check_cases, resolve_model
from jaxllm.doctor.latent_cases import decode_bandwidth
from jaxllm.doctor.result import Context, Outcome
from jaxllm.doctor.timing import share
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.chips import chip_of


def run(context: Context) -> Outcome:
    """Compare with the reference, as the engine would run it; latent attention is timed, too."""
    resolved = resolve_model(context)
    outcome = check_cases(context, resolved)
    if resolved.model.latent is None or outcome.status == "failed":
        return outcome
    return _timed(context, resolved, outcome)


def _timed(context: Context, resolved: ResolvedConfig, outcome: Outcome) -> Outcome:
    context.say(f"{resolved.backend('attention')} attention: timing a decode")
    chip = chip_of(jax.local_devices()[0].device_kind)
    found, peak = decode_bandwidth(resolved), None if chip is None else chip.hbm_bandwidth
    summary = f"{outcome.summary}; decodes at {found / 1e9:,.0f} GB/s{share(found, peak)}"
    figures = {**outcome.figures, "decode_bytes_per_s": found}
    return msgspec.structs.replace(outcome, summary=summary, figures=figures)
