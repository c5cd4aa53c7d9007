"""LoRA adapters on models whose weights are quantized while they are loaded: the adapters stay as they are.

`python lora_with_quantization_inference.py FOLDER` takes an adapter of `demo`; without, one with random values is made.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from multilora_inference import write_random_adapter

from jaxllm import LLM, LoRARequest, SamplingParams

CONFIGS = [{"quantization": "int8"}, {"quantization": "fp8"}]


def main() -> None:
    prompts, params = ["Once upon a time", "The red fox"], SamplingParams(temperature=0, max_tokens=16)
    with TemporaryDirectory() as made:
        folder = sys.argv[1] if len(sys.argv) > 1 else str(write_random_adapter(Path(made) / "adapter", 1))
        adapter = LoRARequest("adapter", 1, folder)
        for config in CONFIGS:
            print("---", config["quantization"])
            llm = LLM("demo", enable_lora=True, max_lora_rank=8, max_model_len=128, show_progress=False, **config)
            for request in (None, adapter):
                for output in llm.generate(prompts, params, use_tqdm=False, lora_request=request):
                    print("adapter:" if request else "model:", output.outputs[0].text)
            llm.close()


if __name__ == "__main__":
    main()
