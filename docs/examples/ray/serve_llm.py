"""Serves a model on a Ray cluster, and queries it with OpenAI's client."""

import argparse

from openai import OpenAI
from ray import serve

from jaxllm.serving.server.ray_serve import build


def main() -> None:
    """Start the application, and stream an answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()

    serve.start(http_options={"host": "127.0.0.1", "port": args.port})
    serve.run(build({"model": args.model}), name="jaxllm")

    question = [{"role": "user", "content": "Who are you?"}]
    with OpenAI(base_url=f"http://127.0.0.1:{args.port}/v1", api_key="none") as client:
        for chunk in client.chat.completions.create(model=args.model, messages=question, stream=True):
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
