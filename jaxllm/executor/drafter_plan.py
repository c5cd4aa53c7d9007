"""Which drafter runs on the devices alongside a model, as the options say."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.kernels.operation import Workload
from jaxllm.executor.kernels.select import select_kernels
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.models.config import ModelConfig
from jaxllm.models.drafters.draft_model import DraftModelPlan, read_draft_model
from jaxllm.models.drafters.eagle3 import Eagle3Plan, is_eagle3, read_eagle3
from jaxllm.models.drafters.mlp_speculator import MlpSpeculatorPlan, is_mlp_speculator, read_mlp_speculator
from jaxllm.models.drafters.mtp import MtpPlan
from jaxllm.models.errors import ModelError
from jaxllm.models.families.registry import lookup

if TYPE_CHECKING:
    from jaxllm.models.drafters.plan import DrafterPlan


def plan_drafter(config: EngineConfig, workload: Workload, dtype: str) -> "tuple[DrafterPlan, Path | None]":
    """The drafter for the model of a workload, and the folder of its weights if they are not in the model's checkpoint.

    Raises:
        ConfigError: the model has none, or the drafter cannot be found or read, or is for another model.
    """
    drafting, model = config.speculation.drafting, workload.model
    assert drafting is not None
    if drafting.method == "mtp":
        _check_mtp(model)
        return MtpPlan(model.mtp_layers), None
    assert drafting.model is not None
    try:
        options = config.model
        folder = find_model(drafting.model, drafting.revision, options.download_dir, options.hf_token)
        plan = _read(folder, drafting.method, model, dtype)
        if isinstance(plan, MlpSpeculatorPlan):
            _check_stages(plan, folder, drafting.num_tokens)
            return plan, folder
    except ModelError as error:
        raise ConfigError(f"speculative_config: {error}") from error
    _check_inner_states(model, plan)
    # Its heads may have a size for which the model's kernel is not made.
    kernels = select_kernels(config.compile, replace(workload, model=plan.cached_layers(model)))
    return replace(plan, attention=kernels["attention"].name), folder


def _read(folder: Path, method: str, model: ModelConfig, dtype: str) -> Eagle3Plan | MlpSpeculatorPlan | DraftModelPlan:
    """Heads say what they are, whatever the method."""
    if is_eagle3(folder):
        return read_eagle3(folder, model)
    if is_mlp_speculator(folder):
        return read_mlp_speculator(folder, model, dtype)
    if method != "draft_model":
        raise ModelError(f"{folder}: this is not {'an EAGLE-3 drafter' if method == 'eagle3' else 'an MLP speculator'}")
    return read_draft_model(folder, model, dtype)


def _check_stages(plan: MlpSpeculatorPlan, folder: Path, num_tokens: int) -> None:
    if num_tokens > plan.stages:
        raise ModelError(
            f"{folder}: this MLP speculator guesses {plan.stages} tokens; give num_speculative_tokens of at most "
            f"{plan.stages} in place of {num_tokens}"
        )


def _check_mtp(model: ModelConfig) -> None:
    if lookup(model.architecture).mtp is None or not model.mtp_layers:
        raise ConfigError(
            f"speculative_config: method='mtp': this checkpoint of {model.architecture} has no layer that predicts "
            "further tokens; choose another method"
        )


def _check_inner_states(model: ModelConfig, plan: "DrafterPlan") -> None:
    if plan.taps and any(layer.streams is not None for layer in model.layers):
        raise ConfigError(
            f"speculative_config: method='eagle3': layers of {model.architecture} have several streams; choose another "
            "method"
        )
