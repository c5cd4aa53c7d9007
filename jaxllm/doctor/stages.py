"""The stages, in their order."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One check. `module` has `run(context) -> Outcome`, and is imported only in the process of the stage.

    `advice` is what to do when the stage crashes or hangs, and cannot say so itself. `needs_devices`: pointless where
    JAX did not start.
    """

    name: str
    module: str
    advice: str
    needs_devices: bool = True


_HUNG_DEVICE = (
    "find the process that holds the device (system stage); if there is none, restart the machine or its driver, and "
    "send us the report"
)
_KERNEL = "serve with --attention-backend xla until this is fixed, and send us the report"

STAGES = (
    Stage("system", "jaxllm.doctor.system", "send us the report: this stage only reads files", needs_devices=False),
    Stage("devices", "jaxllm.doctor.devices", f"JAX does not start: {_HUNG_DEVICE}", needs_devices=False),
    Stage("speed", "jaxllm.doctor.speed", f"plain copies and matrix products do not work: {_HUNG_DEVICE}"),
    Stage(
        "copies",
        "jaxllm.doctor.copies",
        "copies to host memory do not work: serve without --kv-offloading-size, and send us the report",
    ),
    Stage(
        "all_reduce",
        "jaxllm.doctor.all_reduce",
        "the devices cannot reach each other: serve with --tensor-parallel-size 1, and check the links (GPU: "
        "nvidia-smi topo -m, NCCL_DEBUG=INFO; TPU: all hosts of the slice must take part)",
    ),
    Stage("attention", "jaxllm.doctor.attention", _KERNEL),
    Stage("attention_checks", "jaxllm.doctor.attention_checks", _KERNEL),
    Stage("layers", "jaxllm.doctor.layers", "send us the report: the model itself does not run here"),
    Stage(
        "tower",
        "jaxllm.doctor.tower",
        "what sees or hears in the model does not run here: serve with --language-model-only, and send us the report",
    ),
    Stage("greedy", "jaxllm.doctor.greedy", "send us the report: the engine does not run here"),
    Stage(
        "executables",
        "jaxllm.doctor.executables",
        'cached executables do not work here: serve with --compilation-cache-dir "", and send us the report',
    ),
    Stage("steps", "jaxllm.doctor.steps", "send us the report: the engine does not run at full size here"),
)
