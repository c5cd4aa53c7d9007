"""`jaxllm manifest`: what brings a model up on Kubernetes, on what `jaxllm plan` says holds it."""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser, add_engine_flags, engine_flags, explicit_options
from jaxllm.serving.deploy.choice import choose
from jaxllm.serving.deploy.flags import as_flags
from jaxllm.serving.deploy.formats import FORMATS, STREAMS, Wanted, write
from jaxllm.serving.deploy.hardware import DEVICES, Choice
from jaxllm.serving.deploy.installation import GIB, Bucket, Installation
from jaxllm.serving.options.fleet import FleetOptions
from jaxllm.version import __version__

HELP = "Write Kubernetes manifests that serve a model, on the fewest accelerators that hold it."
USAGE = "MODEL --device NAME [flags]"
EXAMPLES = """examples:
  jaxllm manifest demo --device cpu                                all manifests, on standard output
  jaxllm manifest Qwen/Qwen3-8B --device v6e --replicas 2 --output qwen
  kubectl apply -k qwen                                            deploys them
  jaxllm manifest path/to/llama-3-8b --bucket gs://models/llama-3-8b --device v5e --executables gs://models/bundles
  jaxllm manifest path/to/llama-3-70b --bucket gs://models/llama-3-70b --device v6e --topology 4x4 --max-model-len 8K
  jaxllm manifest Qwen/Qwen3-8B --device v6e --disaggregate 1:2    prompts in one server, decoding in two
  jaxllm manifest Qwen/Qwen3-8B --device l4 --format helm --output chart

Only config.json of the model is read, to find the smallest slice that holds it, as `jaxllm plan` does: pip install
'jax[tpu]' for TPUs, which need not be present. The choice is printed on standard error. Clients need a key from a
Secret:

  kubectl create secret generic NAME-keys --from-literal=keys=$(openssl rand -hex 32)

docs/deploy/ has step-by-step guides and the container images."""

_OWN = ("model", "tensor_parallel_size", "max_model_len")
"""Engine options that an `Installation` has by name."""

_TARGET_FLAGS = frozenset(
    {
        *("device", "data_parallel_size", "executables"),
        *("data_parallel_size_local", "data_parallel_start_rank", "data_parallel_address", "data_parallel_rpc_port"),
        *("data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb", "data_parallel_backend"),
        *("distributed_executor_backend", "nnodes", "node_rank", "master_addr", "master_port", "distributed_secret"),
    }
)
"""Engine options that mean something else here, or that say where processes are, as manifests do."""


def add_arguments(parser: FlagParser) -> None:
    """Declare the model, the hardware, the copies, and every engine option."""
    parser.epilog = EXAMPLES
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="The model, as with --model.")
    hardware = parser.add_argument_group("hardware")
    hardware.add_argument("--device", metavar="NAME", help=f"Hardware to serve on: {', '.join(DEVICES)}.")
    hardware.add_argument(
        "--topology",
        metavar="2x4",
        help="TPU topology, in chips along each axis. Default: the smallest that holds the model.",
    )
    hardware.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs per replica. Default: the fewest that hold the model."
    )
    copies = parser.add_argument_group("copies")
    copies.add_argument(
        "--replicas", type=int, default=1, metavar="N", help="Number of replicas of the server. (default: 1)"
    )
    copies.add_argument(
        "--max-replicas",
        type=int,
        metavar="N",
        help="Maximum number of replicas; if greater than --replicas, the number follows the load.",
    )
    copies.add_argument(
        "--disaggregate",
        metavar="PREFILL:DECODE",
        help="Servers that compute prompts and servers that decode, such as 1:2, with a router in front of them.",
    )
    where = parser.add_argument_group("what and where")
    where.add_argument("--name", help="Name of all objects. Default: the model's name.")
    where.add_argument(
        "--image", help="Container image. Default: jaxllm-cpu, jaxllm-cuda or jaxllm-tpu of this version."
    )
    where.add_argument(
        "--bucket",
        metavar="gs://BUCKET/FOLDER",
        help="Bucket from which pods read the model, through Cloud Storage FUSE.",
    )
    where.add_argument(
        "--executables",
        metavar="gs://BUCKET/FOLDER",
        help="Bucket to which a Job writes compiled programs, and from which pods read them. Without it, each pod "
        "compiles when it starts.",
    )
    where.add_argument(
        "--no-api-keys", action="store_true", help="Require no API key: serve every client that can reach a pod."
    )
    where.add_argument(
        "--drain",
        type=int,
        default=60,
        metavar="SECONDS",
        help="Seconds that running requests get to finish when a pod ends. (default: 60)",
    )
    where.add_argument("--metrics-prefix", default="jaxllm", help="Prefix of metric names. (default: jaxllm)")
    where.add_argument("--gateway", action="store_true", help="Add a Gateway, an HTTPRoute and an InferencePool.")
    output = parser.add_argument_group("output")
    output.add_argument("--format", choices=FORMATS, default="kubernetes", help="(default: kubernetes)")
    output.add_argument("--output", metavar="FOLDER", help="Folder to write to. Default: standard output.")
    add_engine_flags(parser, left_out=_TARGET_FLAGS)


def run(args: argparse.Namespace) -> int:
    """Write the manifests; errors are raised, and then nothing is written."""
    if args.device is None:
        raise ConfigError(f"--device is required: one of {', '.join(DEVICES)}")
    if args.replicas < 1 or args.drain < 0:
        raise ConfigError(f"--replicas {args.replicas} must be at least 1, and --drain {args.drain} at least 0")
    sizes = FleetOptions(disaggregate=args.disaggregate).fleet_sizes
    if sizes is not None and (args.gateway or args.format != "kubernetes"):
        raise ConfigError("--disaggregate: only --format kubernetes, and without --gateway")
    given = {name: value for name, value in explicit_options(args).items() if name not in _TARGET_FLAGS}
    if args.model_tag is not None:
        if given.get("model", args.model_tag) != args.model_tag:
            raise ConfigError(f"the model is given twice: {args.model_tag!r} and --model {given['model']!r}")
        given["model"] = args.model_tag
    if args.output is None and args.format not in STREAMS:
        raise ConfigError(f"--format {args.format} writes several files: give --output FOLDER")
    config = EngineConfig.from_options(given)
    bucket = None if args.bucket is None else Bucket.parse("--bucket", args.bucket)
    executables = None if args.executables is None else Bucket.parse("--executables", args.executables)
    model = config.model.model
    if bucket is None and Path(model).is_dir() and args.format != "systemd":
        raise ConfigError(
            f"{model}: pods cannot read this local folder; copy it to a bucket and give --bucket gs://..."
        )
    choice = choose(config, args.device, args.topology, args.gpus)
    installation = Installation(
        name=args.name or name_of(model),
        model="/models" if bucket else model,
        hardware=choice.hardware,
        image=args.image or default_image(choice.hardware.platform),
        tensor_parallel_size=choice.tensor_parallel_size,
        data_parallel_size=choice.data_parallel_size,
        max_model_len=choice.max_model_len if choice.shortened or "max_model_len" in given else None,
        weights=choice.weights,
        replicas=args.replicas,
        max_replicas=max(args.replicas, args.max_replicas or 0),
        weights_bucket=bucket,
        executables=executables,
        api_keys=not args.no_api_keys,
        drain=args.drain,
        metrics_prefix=args.metrics_prefix,
        flags=as_flags({name: value for name, value in given.items() if name not in _OWN}, engine_flags()),
    )
    wanted = Wanted(installation, gateway=args.gateway, disaggregate=sizes)
    write(args.format, wanted, None if args.output is None else Path(args.output))
    for line in _said(choice, installation, args.output):
        sys.stderr.write(f"jaxllm manifest: {line}\n")
    return 0


def default_image(platform: str) -> str:
    """The image that `docs/deploy/images` makes for a platform, at this version."""
    return f"jaxllm-{'cuda' if platform == 'gpu' else platform}:{__version__}"


def name_of(model: str) -> str:
    """A name for the objects of a model: the last part of its own, in Kubernetes' letters."""
    name = re.sub("[^a-z0-9]+", "-", Path(model).name.lower())[:40].strip("-")
    return name if re.match("[a-z]", name) else f"model-{name}"[:40].strip("-")


def _said(choice: Choice, installation: Installation, output: str | None) -> Iterator[str]:
    hardware = choice.hardware
    hosts = "1 host" if hardware.hosts == 1 else f"{hardware.hosts} hosts"
    machine = f" of {hardware.machine}" if hardware.machine else ""
    weights = f"weights {choice.weights / GIB:.1f} GiB"
    yield f"{installation.name}: {hardware.name}, {hosts}{machine}; {weights}"
    engines = "1 engine" if choice.data_parallel_size == 1 else f"{choice.data_parallel_size} engines"
    yield f"{engines} of {choice.tensor_parallel_size}, requests of up to {choice.max_model_len:,} tokens"
    if choice.shortened:
        yield "this is below the model's limit: a larger --topology or more --gpus would allow longer requests"
    if hardware.platform == "gpu":
        yield "memory use is an estimate: only TPUs can be planned exactly without the device"
    if output is not None:
        yield f"written to {output}"
