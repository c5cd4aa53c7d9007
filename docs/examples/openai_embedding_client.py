"""Embeds texts with OpenAI's client. First start `jaxllm serve demo --runner pooling`."""

import os

from openai import OpenAI


def main() -> None:
    client = OpenAI(
        api_key=os.environ.get("OPENAI_API_KEY", "EMPTY"),
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
    )
    model = client.models.list().data[0].id
    found = client.embeddings.create(model=model, input=["The red fox runs.", "2 + 3 = 5"])
    for each in found.data:
        print(each.index, len(each.embedding), each.embedding[:4])


if __name__ == "__main__":
    main()
