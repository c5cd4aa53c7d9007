"""Shared by `jaxllm plan` and `jaxllm compile`: a model, and devices that need not be there."""

import argparse
from typing import TYPE_CHECKING

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser, add_engine_flags, explicit_options
from jaxllm.planning.target import find_target, is_absent, prepare

if TYPE_CHECKING:
    # It loads JAX, which a wrong flag should not have to wait for.
    from jaxllm.executor.resolved import ResolvedConfig
    from jaxllm.planning.target import TargetDevices

DEVICE = "device"
"""An engine's option, which is another one here."""


def add_target_flags(parser: FlagParser, purpose: str) -> None:
    """Declare the model and the devices; `purpose` is a verb."""
    # Not `model`: a positional argument that is not given would hide the flag.
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="The model, as with --model.")
    group = parser.add_argument_group("devices")
    group.add_argument(
        "--device",
        metavar="NAME",
        help=f"Chip to {purpose} for: a TPU (v4, v5e, v5p, v6e, tpu7x), which need not be present, or cpu. "
        "Default: this machine.",
    )
    group.add_argument(
        "--topology",
        metavar="2x4",
        help="TPU topology, in chips along each axis. Default: the smallest with enough devices.",
    )


def add_engine_flags_of_target(parser: FlagParser) -> None:
    """Every engine option but `device`, which is the target here, and flags without effect."""
    add_engine_flags(parser, left_out=(DEVICE,))


def find_config(args: argparse.Namespace) -> "tuple[ResolvedConfig, TargetDevices]":
    """The configuration that the flags describe, and its devices. Imports JAX. Raises `ConfigError`."""
    given = {name: value for name, value in explicit_options(args).items() if name != DEVICE}
    if args.model_tag is not None:
        if given.get("model", args.model_tag) != args.model_tag:
            raise ConfigError(f"the model is given twice: {args.model_tag!r} and --model {given['model']!r}")
        given["model"] = args.model_tag
    config = EngineConfig.from_options(given)
    prepare(args.device)
    # These load JAX, two seconds that --help and wrong flags need not wait for.
    from jaxllm.executor.devices import local_devices, tensor_parallel_size
    from jaxllm.executor.resolve import resolve_config
    from jaxllm.planning.fit import choose_devices

    count = (tensor_parallel_size(config.parallel) or 1) * config.parallel.pipeline_parallel_size
    if not is_absent(args.device):
        local_devices(config, count)
    target = find_target(args.device, args.topology, count)
    resolved = resolve_config(config, target.devices if target.absent else None)
    # The devices of stages are given.
    if resolved.platform != "cpu" and not resolved.stages:
        resolved, _ = choose_devices(resolved, target)
    return resolved, target
