"""Renders a chat, generates tokens, and parses them as a reply. Each step may use another server with the same model.

First start `jaxllm serve demo`; OPENAI_BASE_URL may give another address.
"""

import os
from typing import Any

import httpx

URL = os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1").removesuffix("/v1")
CHAT = {"messages": [{"role": "user", "content": "Tell me a story about a cat."}], "temperature": 0, "max_tokens": 32}


def post(path: str, body: Any) -> Any:
    return httpx.post(f"{URL}{path}", json=body, timeout=60).raise_for_status().json()


def main() -> None:
    rendered = post("/v1/chat/completions/render", CHAT)
    print("prompt tokens:", rendered["token_ids"])
    generated = post("/inference/v1/generate", rendered)
    print("reply tokens:", generated["choices"][0]["token_ids"])
    answer = post("/v1/chat/completions/derender", {"generate_response": generated, "chat_request": CHAT})
    print("reply:", answer["choices"][0]["message"]["content"])


if __name__ == "__main__":
    main()
