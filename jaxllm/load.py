"""The engine that suits a model: one that generates, or one that pools."""

from functools import partial
from typing import TYPE_CHECKING, Literal

from jaxllm.config import EngineConfig
from jaxllm.config.progress import Progress, silent
from jaxllm.engine.garbage import paused, trim_heap
from jaxllm.errors import ConfigError

if TYPE_CHECKING:
    from jaxllm.engine.engine import Engine
    from jaxllm.pooling.engine import PoolingEngine


def choose_runner(config: EngineConfig) -> Literal["generate", "pooling"]:
    """The use of the model: as the options say, else as it was made.

    Raises `ConfigError` for a model that cannot be found or read.
    """
    if config.model.runner != "auto":
        return config.model.runner
    from jaxllm.executor.model_files import model_folder
    from jaxllm.models.checkpoint.model_config import read_config
    from jaxllm.models.errors import ModelError
    from jaxllm.pooling.settings import chosen_runner

    try:
        folder = model_folder(config.model)
        return chosen_runner(config.model, folder, read_config(folder, config.model.hf_overrides))
    except ModelError as error:
        raise ConfigError(str(error)) from error


def load_engine(config: EngineConfig, progress: Progress = silent) -> "Engine | PoolingEngine":
    """Load the model into the engine that suits it. Raises `ConfigError` and `CapacityError`.

    Where it is that of several hosts, this is the first one: it waits for the others, which call `follow_engine`.
    """
    with paused():
        engine = _make_on_hosts(config, progress) if _may_span_hosts(config) else _make(config, progress)
    trim_heap()
    return engine


def is_follower(config: EngineConfig) -> bool:
    """Whether this process is to follow the first one of an engine. Raises `ConfigError`."""
    # Those that Ray starts to follow call `follow_engine`, and need not ask.
    if not _may_span_hosts(config) or config.distributed.distributed_executor_backend == "ray":
        return False
    from jaxllm.hosts.start import place_of

    place = place_of(config.distributed)
    return place is not None and not place.is_leader


def follow_engine(config: EngineConfig, progress: Progress = silent) -> None:
    """Be one of the processes of an engine, but not the first; returns when that ends.

    Raises:
        ConfigError: an option or the checkpoint is wrong, here or in another process.
        CapacityError: the model, or one request of its longest length, does not fit.
        EngineError: another process has ended or failed.
    """
    from jaxllm.hosts.follower import FollowerGroup
    from jaxllm.hosts.start import closing_on_error, join, leave, use_all_devices

    with paused():
        group = join(config)
    assert isinstance(group, FollowerGroup)
    with closing_on_error(group):
        _check_generates(config)
        from jaxllm.engine.assembly import resolve_on_devices
        from jaxllm.executor.build import follow

        resolved = resolve_on_devices(use_all_devices(config, group), group.place.size)
        follow(resolved, group, progress)
    leave(group)


def _may_span_hosts(config: EngineConfig) -> bool:
    options = config.distributed
    is_asked = options.distributed_executor_backend in ("multihost", "ray", "external")
    return is_asked or bool(options.nnodes or options.node_rank)


def _make_on_hosts(config: EngineConfig, progress: Progress) -> "Engine | PoolingEngine":
    """The engine of the first process of several, or of one after all."""
    if is_follower(config):
        raise ConfigError(
            "only process 0 of an engine takes requests, and this is another process: run `jaxllm serve` here with "
            "the same options to join the engine"
        )
    from jaxllm.hosts.start import closing_on_error, join, leave, use_all_devices

    group = join(config)
    if group is None:
        return _make(config, progress)
    with closing_on_error(group):
        _check_generates(config)
        from jaxllm.engine.engine import Engine

        engine = Engine.from_config(use_all_devices(config, group), progress, group)
    engine.on_close.append(partial(leave, group))
    return engine


def _check_generates(config: EngineConfig) -> None:
    if choose_runner(config) == "pooling":
        raise ConfigError(f"{config.model.model} is a pooling model, which runs on one device; omit nnodes")


def _make(config: EngineConfig, progress: Progress) -> "Engine | PoolingEngine":
    if choose_runner(config) == "pooling":
        from jaxllm.pooling.engine import PoolingEngine

        return PoolingEngine.from_config(config, progress)
    from jaxllm.engine.engine import Engine

    return Engine.from_config(config, progress)
