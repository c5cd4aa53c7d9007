"""Requests with adapters of routed experts: each gets its own, whatever else is in the batch, and on any devices."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxllm.engine.engine import Engine
from jaxllm.errors import ConfigError
from jaxllm.requests.request import Request
from tests.e2e.driving import make_engine, run
from tests.e2e.test_adapters import with_adapter
from tests.models.adapters.test_experts import write_modules
from tests.models.every_family import FAMILIES
from tests.thinned import thinned

OPTIONS = {"max_num_batched_tokens": 8, "max_model_len": 64, "max_num_seqs": 4, "dtype": "float32"}
LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    FAMILIES["qwen3_moe"].save(folder)
    return folder


@pytest.fixture(scope="module")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three adapters, and one of zeros."""
    root = tmp_path_factory.mktemp("adapters")
    found = []
    for index, scale in enumerate((1, -2, 3, 0)):
        folder = write_modules(root / str(index), model)
        path = folder / "adapter_model.safetensors"
        save_file({name: value * np.float32(scale) for name, value in load_file(path).items()}, path)
        found.append(folder)
    return found


def requests(folders: list[Path]) -> list[Request]:
    """Two with each adapter, and two with none."""
    random = np.random.default_rng(1)
    prompts = [random.integers(2, 128, int(random.integers(3, 30))).tolist() for _ in range(10)]
    which = [*folders, None]
    return [with_adapter(str(index), prompt, which[index % 5]) for index, prompt in enumerate(prompts)]


def answers(engine: Engine, given: list[Request]) -> list[list[int]]:
    found = run(engine, given)
    return [found[each.request_id].token_ids for each in given]


def test_each_is_what_it_is_alone(model: Path, folders: list[Path]) -> None:
    engine = make_engine(model=str(model), lora_target_modules=("q_proj", "experts"), **OPTIONS, **LORA)
    try:
        mixed = answers(engine, requests(folders))
        alone = [answers(engine, [each])[0] for each in reversed(requests(folders))][::-1]
        assert mixed == alone
        none = [None] * 4
        base = answers(engine, requests(none))  # type: ignore[arg-type]
        assert [mixed[index] == base[index] for index in (3, 8, 4, 9)] == [True] * 4
        assert sum(mixed[index] != base[index] for index in (0, 1, 2, 5, 6, 7)) > 3
    finally:
        engine.close()


WAYS: tuple[dict[str, object], ...] = thinned(
    ({}, {"tensor_parallel_size": 2, "enable_expert_parallel": True}, {"mesh": "data=2"}),
    ({"tensor_parallel_size": 2, "layer_stack": "scan"}, {"pipeline_parallel_size": 2}),
)


@pytest.mark.slow
def test_on_several_devices(model: Path, folders: list[Path]) -> None:
    found = []
    for each in WAYS:
        engine = make_engine(model=str(model), max_lora_expert_rank=8, **OPTIONS, **LORA, **each)
        try:
            found.append(answers(engine, requests(folders)))
        finally:
            engine.close()
        assert found[-1] == found[0], each


def test_what_does_not_fit_is_refused(model: Path) -> None:
    for options, message in (
        ({"max_lora_expert_rank": 16}, "max_lora_expert_rank=16 must be at most max_lora_rank=8"),
        ({"model": "demo", "lora_target_modules": ("experts",)}, "the model has no routed experts"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_engine(**{"model": str(model), **OPTIONS, **LORA, **options})
