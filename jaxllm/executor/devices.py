"""Which devices the engine runs on, and as what mesh."""

import logging
import os
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from jaxllm.config import EngineConfig, ParallelOptions
from jaxllm.errors import ConfigError
from jaxllm.executor.backend import start_backend
from jaxllm.models.config import ModelConfig
from jaxllm.models.sharding import DATA, MODEL, make_mesh, splits, working_sizes

logger = logging.getLogger(__name__)


def tensor_parallel_size(options: ParallelOptions) -> int | None:
    """Devices that share each matrix, from `tensor_parallel_size` or `mesh`; None leaves it to `jaxllm.planning.fit`.

    Raises `ConfigError` when the two contradict each other, or for a mesh of other axes.
    """
    mesh = _axes(options.mesh)
    asked = None if options.tensor_parallel_size == "auto" else options.tensor_parallel_size
    unknown = sorted(set(mesh) - {DATA, MODEL})
    if unknown:
        raise ConfigError(f"mesh: unknown axis {unknown[0]!r} (known: {DATA}, {MODEL})")
    size = mesh.get(MODEL, asked or 1) if mesh else asked
    if asked not in (None, size):
        raise ConfigError(f"tensor_parallel_size={asked} contradicts {MODEL}={size} in mesh; give only one of them")
    return size


def data_shards(options: ParallelOptions) -> int:
    """Parts of the batch that have devices of their own, from `mesh`."""
    return _axes(options.mesh).get(DATA, 1)


def _axes(mesh: str | None) -> dict[str, int]:
    """Sizes by name from 'data=1,model=4'."""
    sizes: dict[str, int] = {}
    for part in mesh.split(",") if mesh else ():
        axis, _, size = part.partition("=")
        if not size.strip().isdecimal() or int(size) < 1:
            raise ConfigError(f"mesh={mesh!r}: expected axis names and sizes, such as 'data=1,model=4'")
        sizes[axis.strip()] = int(size)
    return sizes


def local_devices(config: EngineConfig, count: int) -> list[jax.Device]:
    """The devices of this process. Where there are only CPUs, as many virtual ones as asked for, if JAX has not begun.

    Raises `ConfigError` when there are fewer than `count`, or none of the platform that is asked for.
    """
    devices = _start(config, count)
    if len(devices) < count:
        kind, found = devices[0].device_kind, len(devices)
        virtual = (
            f"; for virtual devices, set XLA_FLAGS=--xla_force_host_platform_device_count={count} before JAX starts"
            if devices[0].platform == "cpu"
            else ""
        )
        mesh, stages = config.parallel.mesh, config.parallel.pipeline_parallel_size
        asked = f"mesh={mesh}" if mesh else f"tensor_parallel_size={count // stages}"
        asked += f" in {stages} stages" if stages > 1 else ""
        raise ConfigError(f"{asked}: there {_are(found)} of kind {kind!r} on this machine{virtual}")
    return devices


def devices_of_all(config: EngineConfig, count: int, processes: int) -> list[jax.Device]:
    """The devices of all processes of an engine, which must be `count`; see `local_devices`."""
    _start(config, count // processes)
    devices = jax.devices()
    if len(devices) != count:
        raise ConfigError(
            f"tensor_parallel_size={count}: an engine on several hosts uses all their devices, and the {processes} "
            f"processes have {len(devices)}"
        )
    return devices


def _start(config: EngineConfig, count: int) -> list[jax.Device]:
    """Start JAX, with `count` virtual devices if there are only CPUs; the devices of this process."""
    if (
        count > 1
        and jax.config.values["jax_num_cpu_devices"] == -1
        and "device_count" not in os.environ.get("XLA_FLAGS", "")
    ):
        try:
            jax.config.update("jax_num_cpu_devices", count)
        except RuntimeError:
            # JAX has counted its devices already; what there is has to do.
            logger.debug("too late for virtual CPU devices")
    return start_backend(config)


def _are(count: int) -> str:
    return "is 1 device" if count == 1 else f"are {count} devices"


def split_over(
    model: ModelConfig,
    devices: Sequence[jax.Device],
    count: int,
    *,
    absent: bool,
    expert_parallel: bool = False,
    shards: int = 1,
) -> Mesh | None:
    """The mesh of the first `count` devices, times `shards`; None for one device that is there, which needs none.

    Raises `ConfigError` for a model that cannot be split over so many, naming the sizes that work.
    """
    if shards > 1 and model.recurrences:
        raise ConfigError(f"mesh: {DATA}={shards}: recurrent layers support one data shard only; omit {DATA}")
    if not splits(model, count, expert_parallel=expert_parallel, shards=shards):
        sizes = ", ".join(map(str, working_sizes(model, expert_parallel=expert_parallel, shards=shards)))
        columns = sorted(set(model.mlp_sizes(with_experts=not expert_parallel)))
        parts = [f"{heads} query heads" for heads in dict.fromkeys(heads for heads, _, _ in model.attention_heads)]
        parts += [f"{heads} KV heads" for heads in dict.fromkeys(heads for heads, _ in model.kv_heads)]
        parts += [f"{size} feed-forward columns" for size in columns]
        parts += [f"{experts} experts" for experts in model.expert_counts if expert_parallel]
        why = None if expert_parallel else model.expert_split_problem(count * shards)
        parts += [f"experts' matrices {why}"] if why else []
        whole = model.expert_counts and splits(model, count, expert_parallel=True, shards=shards)
        among = f" in each of {shards} data shards, which share the experts," if shards > 1 else ""
        raise ConfigError(
            f"tensor_parallel_size={count}{among} cannot divide the model evenly: {', '.join(parts)}; sizes that "
            f"work: {sizes or 'none'}{'; or give --enable-expert-parallel' if whole else ''}"
        )
    return make_mesh(devices, count, shards) if count * shards > 1 or absent else None
