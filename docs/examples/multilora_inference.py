"""Requests with several LoRA adapters, and with none, in one engine that has a slot for one adapter at a time.

`python multilora_inference.py FOLDER FOLDER` takes two adapters of `demo`, as PEFT writes them; without folders, two
with random values are made. `lora_training.py` trains one.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.numpy import save_file

from jaxllm import EngineArgs, LLMEngine, LoRARequest, SamplingParams

LAYERS, HIDDEN, RANK = 4, 128, 8  # of `demo`


def write_random_adapter(folder: Path, seed: int) -> Path:
    """An adapter of the attention's output, with random values."""
    random, tensors = np.random.default_rng(seed), {}
    for layer in range(LAYERS):
        module = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        # Eight heads of 32 make the inputs.
        for half, shape in (("A", (RANK, 256)), ("B", (HIDDEN, RANK))):
            tensors[f"{module}.lora_{half}.weight"] = random.normal(0, 0.2, shape).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def create_test_prompts(folders: list[str]) -> list[tuple[str, SamplingParams, LoRARequest | None]]:
    """Prompts with their parameters and adapters."""
    first, second = (LoRARequest(f"lora-{number}", number, folder) for number, folder in enumerate(folders, 1))
    prompt, greedy = "Once upon a time", SamplingParams(temperature=0, max_tokens=16)
    return [
        ("The red fox", SamplingParams(temperature=0, logprobs=1, max_tokens=16), None),
        (prompt, greedy, None),
        (prompt, greedy, first),
        ("Mira is", SamplingParams(n=2, temperature=0.8, top_p=0.95, seed=1, max_tokens=16), first),
        # Waits until the slot is free.
        (prompt, greedy, second),
    ]


def process_requests(engine: LLMEngine, prompts: list[tuple[str, SamplingParams, LoRARequest | None]]) -> None:
    """Adds a request before each step, and prints those that are finished."""
    number = 0
    while prompts or engine.has_unfinished_requests():
        if prompts:
            prompt, params, adapter = prompts.pop(0)
            engine.add_request(str(number), prompt, params, lora_request=adapter)
            number += 1
        for output in engine.step():
            if output.finished:
                name = output.lora_request.lora_name if output.lora_request else "no adapter"
                print(f"{output.request_id} ({name}): {[each.text for each in output.outputs]}")


def initialize_engine() -> LLMEngine:
    """An engine with one slot, and host memory for two adapters."""
    args = EngineArgs(
        model="demo", enable_lora=True, max_loras=1, max_lora_rank=8, max_cpu_loras=2, max_model_len=128, max_num_seqs=8
    )
    return LLMEngine.from_engine_args(args)


def main() -> None:
    engine = initialize_engine()
    with TemporaryDirectory() as made:
        folders = sys.argv[1:] or [str(write_random_adapter(Path(made) / str(seed), seed)) for seed in (1, 2)]
        process_requests(engine, create_test_prompts(folders))


if __name__ == "__main__":
    main()
