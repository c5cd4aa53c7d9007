"""Chats with OpenAI's client. First start `jaxllm serve demo`; OPENAI_BASE_URL may give another address."""

import os

from openai import OpenAI

MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is 17 plus 25?"},
]


def main() -> None:
    client = OpenAI(
        api_key=os.environ.get("OPENAI_API_KEY", "EMPTY"),
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
    )
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=32)
    print(answer.choices[0].message.content)
    stream = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=32, stream=True)
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
