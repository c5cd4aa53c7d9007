"""`python -m jaxllm`: the same as the command `jaxllm`, where no scripts were installed or another Python is meant."""

import sys

from jaxllm.serving.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
