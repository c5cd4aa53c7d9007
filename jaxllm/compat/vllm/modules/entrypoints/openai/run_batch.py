"""`python -m jaxllm.entrypoints.openai.run_batch -i FILE -o FILE ...`: the same as `jaxllm run-batch`."""

import sys

from jaxllm.serving.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["run-batch", *sys.argv[1:]]))
