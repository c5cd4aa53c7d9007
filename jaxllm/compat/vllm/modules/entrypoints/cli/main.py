"""`python -m jaxllm.entrypoints.cli.main ...`: the same as `jaxllm`."""

import sys

from jaxllm.serving.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
