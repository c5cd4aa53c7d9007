"""Stage `tower`: what sees or hears in the model, with random weights, compared with float32 on the CPU."""

from math import isqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.doctor.attention_cases import resolve_model
from jaxllm.doctor.layers import Compute, limit_of, on_cpu, on_device, shortened
from jaxllm.doctor.result import Context, Outcome
from jaxllm.executor.media_calls import patch_places
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.causal_lm import CausalLM
from jaxllm.models.towers.crop import Crop
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.sound import SoundPlan


def run(context: Context) -> Outcome:
    """Compare the rows of an image of the smallest program, or of a window of sound."""
    resolved = resolve_model(context)
    if not resolved.sees_images:
        return Outcome("the model neither sees images nor hears sound in place of tokens", status="skipped")
    what, rows = _case(resolved)
    context.say(f"{what} in {resolved.dtype} on {resolved.platform}")
    # The tower is in the model: of the language model, a layer is enough.
    model = shortened(resolved.model, 1)
    found = on_device(resolved, model, rows, context)
    context.say(f"{what} in float32 on the CPU")
    wanted = on_cpu(resolved, model, rows, sees_images=True)
    error, limit = float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2))), limit_of(resolved)
    summary = f"{what} in {resolved.dtype} against float32 on the CPU: {error:.1e} of {limit:.0e}"
    figures: dict[str, Any] = {"limit": limit, "error": error if np.isfinite(error) else "infinite"}
    # So that what is no number fails, too.
    if not error <= limit:
        advice = "serve with --language-model-only until this is fixed, and send us the report"
        return Outcome(f"{summary}: too large", figures, "failed", advice)
    return Outcome(summary, figures)


def _case(resolved: ResolvedConfig) -> tuple[str, Compute]:
    """What is compared, in words, and its rows by a model: of all that it has of both."""
    tower, sound = resolved.model.tower, resolved.model.sound
    size = 0 if tower is None else tower.sizes[0]
    names = [] if tower is None else [f"an image of {size} patches"]
    names += [] if sound is None else [f"{sound.num_frames} frames of sound"]

    def rows(model: CausalLM, dtype: str) -> np.ndarray:
        seen = [] if tower is None else [_seen(model, tower, size)]
        return np.concatenate(seen + ([] if sound is None else [_heard(model, sound)]))

    return " and ".join(names), rows


def _seen(model: CausalLM, plan: TowerPlan, size: int) -> np.ndarray:
    side = plan.tile_side or plan.side or isqrt(size) // plan.merge * plan.merge
    patches = np.random.default_rng(size).integers(0, 256, (size, plan.patch_bytes), dtype=np.uint8)
    places = np.pad(patch_places(side, side, plan.merge), ((0, size - side * side), (0, 0)))
    crop = Crop(jnp.asarray(places), jnp.array([side, side], jnp.int32), 1 if plan.fill is None else plan.merge)
    return _computed(model.tower, jnp.asarray(patches), crop)[: plan.rows_of(side * side)]


def _heard(model: CausalLM, plan: SoundPlan) -> np.ndarray:
    features = np.random.default_rng(0).normal(size=(plan.num_bins, plan.num_frames)).astype(np.float32)
    return _computed(model.sound, jnp.asarray(features), jnp.int32(plan.window_frames))


def _computed(module: Any, *inputs: Any) -> np.ndarray:
    graph, state = nnx.split(module)
    return np.asarray(jax.jit(lambda state, *given: nnx.merge(graph, state)(*given))(state, *inputs), np.float32)
