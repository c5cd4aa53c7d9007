"""Answers requests with sound on virtual devices, and prints a line of JSON for each mesh: run by a test.

hear_on_devices.py FOLDER MESH [MESH ...]
"""

import json
import sys

from tests.e2e.driving import make_engine, run
from tests.e2e.sound.windows import hearing, window


def main(folder: str, *meshes: str) -> None:
    """Print the tokens of every prompt."""
    for mesh in meshes:
        engine = make_engine(
            model=folder, mesh=mesh, max_model_len=80, max_num_seqs=4, max_num_batched_tokens=8,
            num_gpu_blocks_override=11, sound_windows=3,
        )  # fmt: skip
        found = run(engine, [hearing(seed, window(seed), [1, 5, 9], max_tokens=12) for seed in range(6)])
        sys.stdout.write(json.dumps([found[name].token_ids for name in sorted(found, key=int)]) + "\n")
        engine.close()


main(*sys.argv[1:])
