"""The engine that suits a model: one that generates, or one that pools."""

from typing import TYPE_CHECKING, Literal

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.garbage import paused, trim_heap
from jaxllm.progress import Progress, silent

if TYPE_CHECKING:
    from jaxllm.engine.engine import Engine
    from jaxllm.pooling.engine import PoolingEngine


def choose_runner(config: EngineConfig) -> Literal["generate", "pooling"]:
    """What the model is for: as the options say, else as it was made.

    Raises `ConfigError` for a model that cannot be found or read.
    """
    if config.model.runner != "auto":
        return config.model.runner
    from jaxllm.models.checkpoint.checkpoint import read_config, resolve
    from jaxllm.models.errors import ModelError
    from jaxllm.pooling.settings import chosen_runner

    try:
        folder = resolve(config.model.model, config.model.revision, config.model.download_dir, weights=False)
        return chosen_runner(config.model, folder, read_config(folder).architecture)
    except ModelError as error:
        raise ConfigError(str(error)) from error


def load_engine(config: EngineConfig, progress: Progress = silent) -> "Engine | PoolingEngine":
    """Load the model into the engine that suits it. Raises `ConfigError` and `CapacityError`."""
    with paused():
        engine = _make(config, progress)
    trim_heap()
    return engine


def _make(config: EngineConfig, progress: Progress) -> "Engine | PoolingEngine":
    if choose_runner(config) == "pooling":
        from jaxllm.pooling.engine import PoolingEngine

        return PoolingEngine.from_config(config, progress)
    from jaxllm.engine.engine import Engine

    return Engine.from_config(config, progress)
