"""An engine that merges an adapter while it reads weights has PEFT's merged model, whatever the adapter changes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from jaxllm.errors import ConfigError, RequestError
from tests.e2e.driving import make_engine, request, run
from tests.models.adapters.test_experts import PARAMETERS
from tests.models.adapters.trained import PROMPTS, linear_layers, save, train
from tests.models.every_family import FAMILIES

OPTIONS: dict[str, Any] = {
    "max_num_batched_tokens": 8,
    "max_model_len": 64,
    "max_num_seqs": 2,
    "dtype": "float32",
    "max_logprobs": 1,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "all-layers-dora-head": ("llama", {"use_dora": True, "modules_to_save": ["lm_head"]}),
    "fused-biases": ("qwen2", {"bias": "all", "lora_bias": True, "target_modules": ["q_proj", "v_proj"]}),
    "experts": ("mixtral", {"target_modules": ["q_proj"], "target_parameters": PARAMETERS}),
}


def greedy(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    """Tokens of transformers."""
    found = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            found.append(int(model(torch.tensor([found])).logits[0, -1].argmax()))
    return found[len(prompt) :]


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_the_merged_model(tmp_path: Path, case: str) -> None:
    name, options = CASES[case]
    model = FAMILIES[name].save(tmp_path)
    base = [greedy(model, prompt, 8) for prompt in PROMPTS]
    trained = train(model, **{"target_modules": linear_layers(model), **options})
    folder = save(trained, tmp_path / "adapter")
    expected = [greedy(trained, prompt, 8) for prompt in PROMPTS]
    assert expected != base
    engine = make_engine(model=str(tmp_path), merge_lora=str(folder), enable_sleep_mode=True, **OPTIONS)
    try:
        with pytest.raises(RequestError, match="level=2: merge_lora has changed the weights"):
            engine.control.sleep(2)
        assert engine.control.sleep(1)
        engine.control.wake_up()
        given = [
            request(str(index), prompt, temperature=0.0, max_tokens=8, ignore_eos=True)
            for index, prompt in enumerate(PROMPTS)
        ]
        found = run(engine, given)
        assert [found[str(index)].token_ids for index in range(len(PROMPTS))] == expected
    finally:
        engine.close()


def test_what_cannot_be_merged_is_refused(tmp_path: Path) -> None:
    model = FAMILIES["llama"].save(tmp_path, tie_word_embeddings=True)
    folder = save(train(model, target_modules=["q_proj"]), tmp_path / "adapter")
    model = FAMILIES["llama"].save(tmp_path, tie_word_embeddings=True)
    rows = save(train(model, target_modules=["k_proj"], trainable_token_indices=[1, 2]), tmp_path / "rows")
    for options, message in (
        ({"enable_lora": True}, "omit enable_lora"),
        ({"load_format": "dummy"}, "merge_lora needs a checkpoint"),
        ({"quantization": "int8"}, "is quantized; merge_lora needs a model that is not"),
        ({"merge_lora": str(rows)}, "changes the embedding, which is this model's output layer"),
        ({"merge_lora": str(tmp_path)}, "merge_lora: .*is not there, so this is not an adapter's folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_engine(**{"model": str(tmp_path), "merge_lora": str(folder), **OPTIONS, **options})
