"""Options of devices, of processes and of hosts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.config.option import Section, option

MAX_ENGINES = 64
"""Maximum number of engines per server."""


@dataclass(frozen=True, kw_only=True)
class ParallelOptions(Section):
    """Devices that the engine runs on, and how the model is distributed over them."""

    device: Literal["auto", "tpu", "gpu", "cpu"] = option(
        "auto",
        "Platform to run on; start-up fails if it is absent. 'auto' takes the one that JAX finds, and warns if that "
        "is the CPU although the machine has an accelerator.",
        synonyms={"cuda": "gpu"},
    )
    tensor_parallel_size: int | Literal["auto"] = option(
        "auto",
        "Number of devices across which every matrix is split, with its attention heads and logits. 'auto': the "
        "fewest that hold the model and one request of maximum length.",
        minimum=1,
        aliases=("tp", "-tp"),
    )
    pipeline_parallel_size: int = option(
        1,
        "Number of pipeline stages, each a range of layers on its own tensor_parallel_size devices. Requests form as "
        "many groups, so that every stage computes a different group at the same time. For devices joined by a slow "
        "link.",
        minimum=1,
        maximum=64,
        aliases=("pp", "-pp"),
    )
    data_parallel_size: int = option(
        1,
        "Number of engines, each a process with its own copy of the model, devices and KV cache. Each request goes "
        "to one of them.",
        minimum=1,
        maximum=MAX_ENGINES,
        aliases=("dp", "-dp"),
    )
    data_parallel_size_local: int | None = option(
        None,
        "Number of these engines that run on this host; the server waits for other hosts (--headless) to join with "
        "the rest. Default: all. See docs/data_parallel.md.",
        minimum=0,
        maximum=MAX_ENGINES,
        aliases=("-dpl",),
    )
    data_parallel_start_rank: int | None = option(
        None,
        "Rank of the first engine on this host, with --headless or behind an external load balancer. Without "
        "--headless it implies --data-parallel-hybrid-lb.",
        minimum=0,
        maximum=MAX_ENGINES - 1,
        aliases=("-dpr",),
    )
    data_parallel_address: str = option(
        "127.0.0.1", "Address of the server's host, which other hosts connect to.", aliases=("-dpa",)
    )
    data_parallel_rpc_port: int = option(
        29550, "Port of the server that other hosts connect to.", minimum=1, maximum=65535, aliases=("-dpp",)
    )
    data_parallel_rank: int | None = option(
        None,
        "Rank of this server's only engine, behind an external load balancer of data_parallel_size servers; implies "
        "--data-parallel-external-lb.",
        minimum=0,
        maximum=MAX_ENGINES - 1,
        aliases=("-dpn",),
    )
    data_parallel_external_lb: bool = option(
        False,
        "An external load balancer distributes requests over servers with one engine each; this server's engine has "
        "rank data_parallel_rank.",
        aliases=("-dpe",),
    )
    data_parallel_hybrid_lb: bool = option(
        False,
        "An external load balancer distributes requests over hosts; this server distributes them over its "
        "data_parallel_size_local engines. The first has rank data_parallel_start_rank.",
        aliases=("-dph",),
    )
    data_parallel_routing: Literal["load", "prefix"] = option(
        "load",
        "How to choose an engine for a request: 'load' takes the least busy one (4 x waiting + running requests); "
        "'prefix' takes the one that has the beginning of the prompt, as its events tell (--kv-events-config) or as it "
        "was sent, unless it is much busier than others.",
    )
    data_parallel_backend: Literal["mp", "ray"] = option(
        "mp",
        "Where engine processes start: 'mp' on this machine, 'ray' on nodes of a Ray cluster with free resources.",
        aliases=("-dpb",),
    )
    enable_expert_parallel: bool = option(
        False,
        "In mixture-of-experts models, place whole experts on each device instead of a slice of every expert. The "
        "number of experts must be a multiple of the number of devices.",
        aliases=("ep", "-ep"),
    )
    mesh: str | None = option(
        None,
        "Devices as a mesh of named axes: 'model=4' equals tensor_parallel_size=4; 'data=2,model=4' makes two data "
        "shards of four devices, each with its own requests and KV cache pages, in one program. Experts are "
        "distributed over all eight devices. max_num_seqs and max_num_batched_tokens apply to each shard.",
    )

    @property
    def first_rank(self) -> int:
        """Rank of this server's first engine among those of all servers behind a load balancer; 0 without one."""
        behind = self.data_parallel_hybrid_lb or self.data_parallel_external_lb
        return (self.data_parallel_start_rank or 0) if behind else 0

    @property
    def engines_here(self) -> int:
        """Engines on this host."""
        return self.data_parallel_size if self.data_parallel_size_local is None else self.data_parallel_size_local


@dataclass(frozen=True, kw_only=True)
class RayOptions(Section):
    """Engines whose processes a Ray cluster places, starts and restarts.

    With data_parallel_backend='ray', or distributed_executor_backend='ray'.
    """

    ray_resources: Mapping[str, Any] | None = option(
        None,
        'Resources that each engine process requests from the cluster, as JSON: {"TPU": 8, "TPU-v6e-8-head": 1}. If '
        "an engine has several processes, only the first requests resources whose name ends in -head. Default: the "
        "process's share of the TPU chips or GPUs, or one CPU.",
        shown=True,
    )
    ray_runtime_env: Mapping[str, Any] | None = option(
        None,
        'Ray\'s runtime environment for the engines, as JSON: {"env_vars": {"HF_HOME": "/mnt/models"}}. Environment '
        "variables of JAX, XLA, Hugging Face and jaxllm are always copied.",
    )


@dataclass(frozen=True, kw_only=True)
class DistributedOptions(Section):
    """One engine on several hosts: the rank of this process, and the address of process 0."""

    distributed_executor_backend: Literal["auto", "uniproc", "multihost", "ray", "external"] = option(
        "auto",
        "Processes that run an engine's devices. 'uniproc': one process. 'multihost': one process per host, "
        "described by --nnodes and --node-rank or by the environment (LWS_*, TPU_WORKER_*, SLURM_*, "
        "JOB_COMPLETION_INDEX). 'ray': --nnodes processes that a Ray cluster places and starts. 'external': "
        "processes that have already initialized jax.distributed. 'auto': multihost with --nnodes above 1, otherwise "
        "uniproc.",
        synonyms={"mp": "auto", "uni": "uniproc", "external_launcher": "external"},
    )
    nnodes: int | None = option(
        None, "Number of the engine's processes, one per host. Default: 1.", minimum=1, maximum=4096, aliases=("-n",)
    )
    node_rank: int | None = option(
        None,
        "Rank of this process, from 0. Process 0 schedules and serves; the others run the steps it schedules. "
        "Default: 0.",
        minimum=0,
        aliases=("-r",),
    )
    master_addr: str | None = option(None, "Address at which other processes reach process 0. Default: 127.0.0.1.")
    master_port: int | None = option(
        None,
        "Port of process 0 that the others connect to; jax.distributed uses the next port. Default: 29501.",
        minimum=1,
        maximum=65534,
    )
    distributed_timeout_seconds: int = option(
        600, "Seconds within which all processes must connect at start-up.", minimum=1, maximum=86400
    )
    distributed_secret: str | None = option(
        None,
        "Shared secret of the engine's processes. If set, processes without it are rejected, and their communication "
        "is encrypted.",
        environment="JAXLLM_DISTRIBUTED_SECRET",
    )
