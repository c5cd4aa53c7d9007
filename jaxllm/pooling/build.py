"""From a plan to a runner that is ready: weights and executables."""

from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.bundle.cached import KeptExecutables, prune
from jaxllm.errors import ConfigError
from jaxllm.models.errors import ModelError
from jaxllm.models.pooling_model import load_pooling_model
from jaxllm.pooling.programs import PoolingSpec, make_spec
from jaxllm.pooling.resolved import PoolingPlan
from jaxllm.pooling.runner import PoolingRunner
from jaxllm.progress import Progress, silent
from jaxllm.runtime.native import begin_kernels
from jaxllm.runtime.programs.compilations import CompilationWatch
from jaxllm.runtime.programs.executables import Executables, use_compilation_cache


def build_pooling_runner(plan: PoolingPlan, progress: Progress = silent) -> PoolingRunner:
    """Load the weights and compile the steps at the same time.

    Raises `ConfigError` when the checkpoint is broken or does not match its configuration.
    """
    compile_options = plan.plan.config.compile
    try:
        spec, buckets = make_spec(plan)
        cache = use_compilation_cache(compile_options.compilation_cache_dir)
        wait_for_kernels = begin_kernels(plan.plan, cache)
        executables = _executables(plan, spec, cache)
        at_start = () if compile_options.enforce_eager else buckets.all
        with executables.compiling(at_start, progress):
            parameters = _load(plan, progress)
        wait_for_kernels()
    except ModelError as error:
        raise ConfigError(str(error)) from error
    runner = PoolingRunner(
        parameters=parameters,
        executables=executables,
        buckets=buckets,
        shape=spec.shape,
        hidden_size=spec.hidden_size,
        size=plan.size,
        watch=CompilationWatch(strict=compile_options.strict_compilation),
    )
    runner.warm_up()
    return runner


def _executables(plan: PoolingPlan, spec: PoolingSpec, cache: Path | None) -> Executables:
    """Those that earlier starts kept; the others are compiled."""
    options = plan.plan.config.compile
    executables = Executables(spec, options)
    if cache is None:
        return executables
    prune(cache)
    return Executables(spec, options, kept=KeptExecutables.of(cache, plan.plan, spec, 0, executables.compiler_options))


def _load(plan: PoolingPlan, progress: Progress) -> tuple[jax.Array, ...]:
    """The parameters' leaves, on the device."""

    def report(done: int, total: int) -> None:
        progress("Loading weights", done, total)

    common = plan.plan
    options = common.config.model
    model = load_pooling_model(
        common.folder,
        common.model,
        plan.forward,
        jnp.dtype(common.dtype),
        plan.settings.num_labels,
        plan.settings.dense,
        plan.settings.answer_ids,
        options.load_format,
        options.seed,
        report,
    )
    return tuple(jax.tree.leaves(nnx.split(model)[1]))
