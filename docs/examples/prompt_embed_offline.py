"""Uses embeddings as prompts: those of a text, and a mixture of two texts, which no tokens can express."""

from pathlib import Path

import numpy as np
from safetensors.flax import load_file

import jaxllm
from jaxllm import LLM, SamplingParams


def main() -> None:
    llm = LLM(model="demo", enable_prompt_embeds=True)
    params = SamplingParams(temperature=0, max_tokens=12)
    # What `model.get_input_embeddings()` of transformers would look up.
    folder = Path(jaxllm.__file__).parent / "models" / "demo"
    rows = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]

    tokenizer = llm.get_tokenizer()
    prompts = ["Once upon a time there was a red fox", "Once upon a time there was a grey owl"]
    fox, owl = (rows[np.array(tokenizer.encode(prompt))] for prompt in prompts)
    both = min(len(fox), len(owl))
    mixed = (fox[:both] + owl[:both]) / 2
    outputs = llm.generate([{"prompt_embeds": each} for each in (fox, owl, mixed)], params, use_tqdm=False)
    for name, output in zip(("fox", "owl", "mixed"), outputs, strict=True):
        print(f"{name}: {output.outputs[0].text!r}")
    (as_text,) = llm.generate(prompts[0], params, use_tqdm=False)
    print("the same as the text:", outputs[0].outputs[0].text == as_text.outputs[0].text)


if __name__ == "__main__":
    main()
