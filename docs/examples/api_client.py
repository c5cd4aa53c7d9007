"""Queries the plain interface of vLLM's demonstration server, which `jaxllm serve demo` offers at /generate."""

import json
import os
import sys

import httpx

URL = os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1").removesuffix("/v1")


def main() -> None:
    prompt = " ".join(sys.argv[1:]) or "Once upon a time"
    body = {"prompt": prompt, "max_tokens": 16, "temperature": 0}
    print(httpx.post(f"{URL}/generate", json=body, timeout=60).raise_for_status().json()["text"])
    with httpx.stream("POST", f"{URL}/generate", json={**body, "stream": True}, timeout=60) as response:
        for line in filter(None, response.iter_lines()):
            print(json.loads(line)["text"])


if __name__ == "__main__":
    main()
