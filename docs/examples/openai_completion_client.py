"""Completes a text with OpenAI's client. First start `jaxllm serve demo`; OPENAI_BASE_URL may give another address."""

import os

from openai import OpenAI


def main() -> None:
    client = OpenAI(
        api_key=os.environ.get("OPENAI_API_KEY", "EMPTY"),
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
    )
    model = client.models.list().data[0].id
    completion = client.completions.create(model=model, prompt="Once upon a time", n=2, logprobs=1, max_tokens=16)
    for choice in completion.choices:
        print(choice.index, repr(choice.text))
    for chunk in client.completions.create(model=model, prompt="Mira is", max_tokens=16, stream=True):
        print(chunk.choices[0].text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
