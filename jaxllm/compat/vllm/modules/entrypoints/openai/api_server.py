"""`python -m jaxllm.entrypoints.openai.api_server --model MODEL ...`: the same as `jaxllm serve`."""

import sys

from jaxllm.serving.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
