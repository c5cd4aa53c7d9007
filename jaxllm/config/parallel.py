"""Options of devices, of processes and of hosts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.config.option import Section, option

MAX_ENGINES = 64
"""Most engines behind one server."""


@dataclass(frozen=True, kw_only=True)
class ParallelOptions(Section):
    """Which devices the engine runs on, and how the model lies on several."""

    device: Literal["auto", "tpu", "gpu", "cpu"] = option(
        "auto",
        "Platform to run on; the start fails where there is none. 'auto' is what JAX finds, with a warning when it is "
        "the CPU although there is an accelerator.",
        synonyms={"cuda": "gpu"},
    )
    tensor_parallel_size: int | Literal["auto"] = option(
        "auto",
        "Devices that share every matrix, each with its part of heads, layers and logits. 'auto': as few "
        "as hold the model and one of its longest requests.",
        minimum=1,
        aliases=("tp", "-tp"),
    )
    pipeline_parallel_size: int = option(
        1,
        "Stages of layers, each on tensor_parallel_size devices of its own. Requests are in as many groups, and while "
        "one is in a stage, the next group is in the stage before. For devices that only a slow link joins.",
        minimum=1,
        maximum=64,
        aliases=("pp", "-pp"),
    )
    data_parallel_size: int = option(
        1,
        "Engines, each in a process of its own with a copy of the model, its devices and its KV cache. Every request "
        "goes to one of them.",
        minimum=1,
        maximum=MAX_ENGINES,
        aliases=("dp", "-dp"),
    )
    data_parallel_size_local: int | None = option(
        None,
        "Of these engines, those on this host; the server waits for other hosts to join with the others (--headless). "
        "Default: all. See docs/data_parallel.md.",
        minimum=0,
        maximum=MAX_ENGINES,
        aliases=("-dpl",),
    )
    data_parallel_start_rank: int | None = option(
        None,
        "Number of the first engine on this host; with --headless, or behind a balancer (--data-parallel-hybrid-lb, "
        "which it implies otherwise).",
        minimum=0,
        maximum=MAX_ENGINES - 1,
        aliases=("-dpr",),
    )
    data_parallel_address: str = option(
        "127.0.0.1", "Address of the server's host, at which other hosts join.", aliases=("-dpa",)
    )
    data_parallel_rpc_port: int = option(
        29550, "Port at which other hosts join the server.", minimum=1, maximum=65535, aliases=("-dpp",)
    )
    data_parallel_rank: int | None = option(
        None,
        "Number of this server's one engine, behind a balancer that chooses among data_parallel_size servers; implies "
        "--data-parallel-external-lb.",
        minimum=0,
        maximum=MAX_ENGINES - 1,
        aliases=("-dpn",),
    )
    data_parallel_external_lb: bool = option(
        False,
        "A balancer of yours chooses among the engines, each behind a server of its own: this one has number "
        "data_parallel_rank.",
        aliases=("-dpe",),
    )
    data_parallel_hybrid_lb: bool = option(
        False,
        "A balancer of yours chooses among hosts: this server chooses among its data_parallel_size_local engines, of "
        "which the first has number data_parallel_start_rank.",
        aliases=("-dph",),
    )
    data_parallel_routing: Literal["load", "prefix"] = option(
        "load",
        "Which engine gets a request: the one with the least to do (4 x waiting + running), or 'prefix', the one that "
        "was sent the same beginning of a prompt before, unless it is much busier.",
    )
    data_parallel_backend: Literal["mp", "ray"] = option(
        "mp",
        "What starts the engines' processes: 'mp' this machine's system, 'ray' a Ray cluster, where it has room.",
        aliases=("-dpb",),
    )
    enable_expert_parallel: bool = option(
        False,
        "Of a mixture of experts each device has some of the experts, in place of its part of each. Their number must "
        "be a multiple of the devices'.",
        aliases=("ep", "-ep"),
    )
    mesh: str | None = option(
        None,
        "Devices as a mesh of named axes: 'model=4' is tensor_parallel_size=4; 'data=2,model=4' are two data shards of "
        "four devices, each with its own requests and KV pages, in one program. All eight share the experts of a "
        "mixture. max_num_seqs and max_num_batched_tokens are those of each shard.",
    )

    @property
    def first_rank(self) -> int:
        """Number of this server's first engine among all, where a balancer stands before several servers."""
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
        'What each process of an engine asks of the cluster, as JSON: {"TPU": 8, "TPU-v6e-8-head": 1}. Of several '
        "processes only the first asks for a name that ends in -head. The default is its part of the TPU chips or the "
        "GPUs, or one CPU.",
        shown=True,
    )
    ray_runtime_env: Mapping[str, Any] | None = option(
        None,
        'Ray\'s runtime environment for the engines, as JSON: {"env_vars": {"HF_HOME": "/mnt/models"}}. Variables of '
        "JAX, XLA, Hugging Face and jaxllm are copied in any case.",
    )


@dataclass(frozen=True, kw_only=True)
class DistributedOptions(Section):
    """One engine on several hosts: which of its processes this is, and where the first one is."""

    distributed_executor_backend: Literal["auto", "uniproc", "multihost", "ray", "external"] = option(
        "auto",
        "Who runs an engine's devices. 'uniproc': one process. 'multihost': one on each host, by --nnodes and so on or "
        "as the environment says (LWS_*, TPU_WORKER_*, SLURM_*, JOB_COMPLETION_INDEX). 'ray': --nnodes processes that "
        "a Ray cluster places and starts. 'external': processes in which jax.distributed is initialised already. "
        "'auto': multihost with --nnodes above 1, else uniproc.",
        synonyms={"mp": "auto", "uni": "uniproc", "external_launcher": "external"},
    )
    nnodes: int | None = option(
        None, "Processes of the engine, one on each host. Default: 1.", minimum=1, maximum=4096, aliases=("-n",)
    )
    node_rank: int | None = option(
        None,
        "Which of them this is, from 0. The first schedules and serves; the others follow it and serve nothing. "
        "Default: 0.",
        minimum=0,
        aliases=("-r",),
    )
    master_addr: str | None = option(None, "Host of the first process, as the others reach it. Default: 127.0.0.1.")
    master_port: int | None = option(
        None,
        "Port on which the first process is followed; jax.distributed uses the next one. Default: 29501.",
        minimum=1,
        maximum=65534,
    )
    distributed_timeout_seconds: int = option(
        600, "Time for all processes to come together at the start.", minimum=1, maximum=86400
    )
    distributed_secret: str | None = option(
        None,
        "What the processes of an engine must all know. With it, what they say to each other is encrypted.",
        environment="JAXLLM_DISTRIBUTED_SECRET",
    )
