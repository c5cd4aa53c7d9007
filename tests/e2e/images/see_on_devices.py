"""Answers requests with images on virtual devices, and prints a line of JSON for each mesh: run by a test.

see_on_devices.py FOLDER MESH [MESH ...]
"""

import json
import sys

from tests.e2e.driving import make_engine, run
from tests.e2e.images.prompts import drawn_prompts, seeing


def main(folder: str, *meshes: str) -> None:
    """Print the tokens of every prompt."""
    for mesh in meshes:
        engine = make_engine(
            model=folder, mesh=mesh, max_model_len=192, max_num_seqs=4, max_num_batched_tokens=16,
            num_gpu_blocks_override=17, media_pool_tokens=48,
        )  # fmt: skip
        found = run(engine, [seeing(i, prompt, max_tokens=24) for i, prompt in enumerate(drawn_prompts())])
        sys.stdout.write(json.dumps([found[name].token_ids for name in sorted(found, key=int)]) + "\n")
        engine.close()


main(*sys.argv[1:])
