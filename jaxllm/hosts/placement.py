"""Which process of an engine this is, of how many, and where the first one is: from options or the environment."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from jaxllm.config import DistributedOptions, EngineConfig
from jaxllm.errors import ConfigError

DEFAULT_ADDRESS, DEFAULT_PORT = "127.0.0.1", 29501
_SIZE, _RANK, _ADDRESS, _PORT = (f"JAXLLM_RAY_{name}" for name in ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"))


@dataclass(frozen=True)
class Placement:
    """Process `rank` of `size`; the first one is reached at `address`:`port`. `source` says who told so."""

    size: int
    rank: int
    address: str
    port: int
    source: str

    @property
    def is_leader(self) -> bool:
        """Whether this is the first one, which schedules and serves."""
        return self.rank == 0

    @property
    def coordinator(self) -> str:
        """Where the first process runs the service of `jax.distributed`."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port + 1}"

    @property
    def variables(self) -> dict[str, str]:
        """The variable that Ray's actor sets for a process, by which `find_placement` finds this place there."""
        return {_SIZE: str(self.size), _RANK: str(self.rank), _ADDRESS: self.address, _PORT: str(self.port)}


@dataclass(frozen=True)
class _Found:
    source: str
    size: int | None = None
    rank: int | None = None
    address: str | None = None


def find_placement(options: DistributedOptions, environment: Mapping[str, str]) -> Placement | None:
    """The place of this process among those of one engine; None where it is the only one.

    Options come before the environment, which is read for the backends 'multihost' and 'ray' only. Raises
    `ConfigError`, which names the option or variable.
    """
    backend = options.distributed_executor_backend
    if backend == "auto":
        backend = "multihost" if (options.nnodes or 1) > 1 else "uniproc"
    if backend == "uniproc" and (options.nnodes or 1) > 1:
        raise ConfigError(
            f"nnodes={options.nnodes} needs a process on each host: omit distributed_executor_backend='uniproc'"
        )
    if backend == "ray":
        return None if options.nnodes == 1 else _from_ray(environment)
    if backend != "multihost":
        _check_rank(options)
        return None
    found = _Found("the options") if _is_complete(options) else _from_environment(environment)
    size, rank = options.nnodes or found.size, found.rank if options.node_rank is None else options.node_rank
    if size is None:
        raise ConfigError(
            "distributed_executor_backend='multihost': neither nnodes nor the environment gives the number of "
            "processes (LWS_GROUP_SIZE, TPU_WORKER_HOSTNAMES, SLURM_NTASKS)"
        )
    if size == 1:
        return None
    if rank is None:
        raise ConfigError(f"nnodes={size}: the rank of this process is unknown; give node_rank, from 0 to {size - 1}")
    if rank >= size:
        raise ConfigError(f"node_rank={rank}: must be from 0 to {size - 1} with {size} processes ({found.source})")
    address = options.master_addr or found.address or DEFAULT_ADDRESS
    return Placement(size, rank, address, options.master_port or DEFAULT_PORT, found.source)


def refuse_stages_on_hosts(config: EngineConfig, processes: int) -> None:
    """Raise `ConfigError` for an engine in stages that several processes are to make."""
    stages = config.parallel.pipeline_parallel_size
    if stages > 1 and processes > 1:
        raise ConfigError(
            f"pipeline_parallel_size={stages}: all stages must be in one process, but nnodes={processes}; use "
            "tensor_parallel_size, which may span hosts, instead of pipeline_parallel_size, or omit nnodes"
        )


def _check_rank(options: DistributedOptions) -> None:
    if options.node_rank:
        raise ConfigError(f"node_rank={options.node_rank}: there is only one process; give nnodes too")


def _from_ray(environment: Mapping[str, str]) -> Placement:
    """The place that `Placement.variables` say."""
    size, rank, port = (_number(environment, name) for name in (_SIZE, _RANK, _PORT))
    if size is None or rank is None or port is None or _ADDRESS not in environment:
        raise ConfigError(
            "distributed_executor_backend='ray': this process was not started by Ray; use `jaxllm serve` or `LLM`, "
            "which have Ray start an engine's processes"
        )
    return Placement(size, rank, environment[_ADDRESS], port, "Ray")


def _is_complete(options: DistributedOptions) -> bool:
    return options.nnodes is not None and options.node_rank is not None


def _from_environment(environment: Mapping[str, str]) -> _Found:
    """What the first launcher says that has left its variables here."""
    finders = (_leader_worker_set, _slurm, _tpu_slice, _indexed_job)
    found = (find(environment) for find in finders)
    return next((each for each in found if each is not None), _Found("the options"))


def _leader_worker_set(environment: Mapping[str, str]) -> _Found | None:
    """A group of Kubernetes' LeaderWorkerSet."""
    if "LWS_LEADER_ADDRESS" not in environment:
        return None
    size, rank = _number(environment, "LWS_GROUP_SIZE"), _number(environment, "LWS_WORKER_INDEX")
    return _Found("LWS_GROUP_SIZE", size, rank, environment["LWS_LEADER_ADDRESS"])


def _slurm(environment: Mapping[str, str]) -> _Found | None:
    """A step of Slurm, with one task on each node."""
    if "SLURM_PROCID" not in environment:
        return None
    size, rank = _number(environment, "SLURM_NTASKS"), _number(environment, "SLURM_PROCID")
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    return _Found("SLURM_NTASKS", size, rank, first_host(hosts) or None)


def _tpu_slice(environment: Mapping[str, str]) -> _Found | None:
    """The hosts of a TPU slice, as GKE and TPU VMs say it."""
    hosts = [name.strip() for name in environment.get("TPU_WORKER_HOSTNAMES", "").split(",") if name.strip()]
    if not hosts:
        return None
    return _Found("TPU_WORKER_HOSTNAMES", len(hosts), _number(environment, "TPU_WORKER_ID"), hosts[0])


def _indexed_job(environment: Mapping[str, str]) -> _Found | None:
    """A pod of Kubernetes' indexed Job, which knows its number only."""
    if "JOB_COMPLETION_INDEX" not in environment:
        return None
    return _Found("JOB_COMPLETION_INDEX", None, _number(environment, "JOB_COMPLETION_INDEX"))


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    # Slurm writes "2(x3)" for some counts, never for these.
    if not text.strip().isdecimal() or len(text) > 9:
        raise ConfigError(f"{name}={text!r} in the environment: expected a number")
    return int(text)


def first_host(hosts: str) -> str:
    """The first of Slurm's list of hosts: 'tpu[003-007,9],gpu1' begins with tpu003."""
    found = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\]([^\[,]*))?", hosts.strip())
    return "" if found is None else "".join(part for part in found.groups() if part)
