"""`jaxllm` as a process, with the key of the server that tests of this folder share."""

import os
import subprocess
import sys

KEY = "the key"
MAIN = (sys.executable, "-m", "jaxllm.serving.cli.main")


def run(*arguments: str, stdin: str | None = None, key: str = KEY) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "JAXLLM_API_KEY": key}
    return subprocess.run(
        [*MAIN, *arguments], input=stdin, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
