"""`jaxllm` with `demo` in place of models that are not here; it imports little, since every command is a process."""

import re
import sys

OTHER_MODELS = re.compile(r"MODEL|[\w./-]+/[\w.-]+|\./[\w./-]+")
"""Models that are not here: `demo` is run in their place."""


def replaced(arguments: list[str]) -> list[str]:
    """A command's arguments, but for models: the first one and what follows `--model`."""
    return [
        "demo" if before in ("", "--model") and OTHER_MODELS.fullmatch(word) else word
        for before, word in zip(["", *arguments], arguments, strict=False)
    ]


if __name__ == "__main__":
    from jaxllm.serving.cli.main import main

    command, *rest = sys.argv[1:]
    raise SystemExit(main([command, *replaced(rest)]))
