"""Answers requests with images on virtual devices, and prints them as JSON: run by a test.

see_qwen_on_devices.py FOLDER MESH
"""

import json
import sys

from tests.e2e.driving import make_engine, run
from tests.e2e.images.qwen_prompts import drawn_prompts, seeing


def main(folder: str, mesh: str) -> None:
    """Print the tokens of every prompt."""
    engine = make_engine(
        model=folder, mesh=mesh, max_model_len=192, max_num_seqs=4, max_num_batched_tokens=16, media_pool_tokens=64
    )
    found = run(engine, [seeing(i, prompt, max_tokens=12) for i, prompt in enumerate(drawn_prompts())])
    sys.stdout.write(json.dumps([found[name].token_ids for name in sorted(found, key=int)]))
    engine.close()


main(*sys.argv[1:])
