"""How the process of an engine starts: by Ray where it places engines, or here with its part of the devices."""

from functools import partial
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.ipc.client.on_ray.process import RayProcess
from jaxllm.serving.ipc.client.placement import visible_devices


def launch_with_devices(launch: Launch, config: EngineConfig, number: int) -> Launch:
    """Starts the process of an engine so that it sees its part of the devices, or has Ray do so.

    Raises `ConfigError`.
    """
    if config.is_on_ray:
        return partial(RayProcess, config=config)
    variables = visible_devices(number, config.parallel)
    if not variables:
        return launch
    with_variables: Any = launch
    return partial(with_variables, variables=variables)
