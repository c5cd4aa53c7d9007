"""Which hardware holds a model: what `jaxllm plan` says fits, over the slices that there are."""

from jaxllm.config import EngineConfig
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.planning.target import prepare
from jaxllm.serving.deploy.hardware import Choice, slices_of


def choose(config: EngineConfig, device: str, topology: str | None = None, gpus: int | None = None) -> Choice:
    """The smallest slice that holds the model with its own length; else of one host, with the length that it holds.

    Slices of several hosts come last. Imports JAX; for TPUs libtpu describes them, for GPUs memory is estimated.

    Raises:
        ConfigError: an unknown device, a topology that there is not, or a model that cannot be read.
        CapacityError: no slice holds the model; the message says what the largest one lacks.
    """
    slices = slices_of(device, topology)
    if gpus is not None:
        slices = tuple(each for each in slices if each.chips_per_host == gpus and each.platform == "gpu")
        if not slices:
            raise ConfigError(
                f"--gpus {gpus}: machines with {device} have 1, 2, 4 or 8 GPUs; for TPUs, give --topology"
            )
    prepare("cpu" if slices[0].platform == "gpu" else device)
    # It imports JAX, which reads the environment that `prepare` has set.
    from jaxllm.serving.deploy.slice_fit import fit_slice

    best: Choice | None = None
    problem: Exception = CapacityError("")
    for each in slices:
        if best is not None and each.hosts > 1:
            break
        try:
            found = fit_slice(config, each)
        except CapacityError as error:
            problem = error
            continue
        if not found.shortened:
            return found
        best = found
    if best is None:
        raise CapacityError(f"{config.model.model} does not fit {slices[-1].name}: {problem}") from problem
    return best
