"""Sends embeddings with OpenAI's client. First start `jaxllm serve demo --enable-prompt-embeds`."""

import os
from base64 import b64encode
from pathlib import Path

import numpy as np
from openai import OpenAI
from safetensors.flax import load_file, save

import jaxllm


def main() -> None:
    client = OpenAI(
        api_key=os.environ.get("OPENAI_API_KEY", "EMPTY"),
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
    )
    model = client.models.list().data[0].id
    # What `model.get_input_embeddings()` of transformers would look up.
    folder = Path(jaxllm.__file__).parent / "models" / "demo"
    rows = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    prompt = "Once upon a time there was a red fox"
    as_text = client.completions.create(
        model=model, prompt=prompt, max_tokens=12, temperature=0, extra_body={"return_token_ids": True}
    )
    embeds = rows[np.array(as_text.choices[0].prompt_token_ids)]
    file = save({"prompt": embeds})  # with PyTorch, torch.save works too
    as_embeds = client.completions.create(
        model=model,
        prompt=None,
        max_tokens=12,
        temperature=0,
        extra_body={"prompt_embeds": b64encode(file).decode()},
    )
    print(repr(as_embeds.choices[0].text))
    print("the same as the text:", as_embeds.choices[0].text == as_text.choices[0].text)


if __name__ == "__main__":
    main()
