"""Answers prompts about drawn images on virtual devices, and prints a line of JSON for each mesh: run by a test.

answer_on_devices.py FOLDER CASE MESH [MESH ...], with the case's marker, sizes of images and options as JSON
"""

import json
import sys
from typing import Any

from jaxllm import LLM, SamplingParams
from tests.e2e.images.pictures import picture

TEXT = "Look: {} and tell what it is."


def main(folder: str, case: str, *meshes: str) -> None:
    """Print tokens of each prompt, and of 100 prompts with 10 images how many were looked up, and found."""
    marker, sizes, options = json.loads(case)
    images = [picture(number, *size) for number, size in enumerate(sizes)]
    small = [picture(100 + number, *sizes[0]) for number in range(10)]
    asked: Any = [{"prompt": TEXT.format(marker), "multi_modal_data": {"image": [image]}} for image in images]
    many: Any = [{"prompt": marker, "multi_modal_data": {"image": [small[number % 10]]}} for number in range(100)]
    for mesh in meshes:
        with LLM(folder, mesh=mesh, **options) as llm:
            found = llm.generate(asked, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), use_tqdm=False)
            engine: Any = llm.llm_engine.engine
            pool = engine.media.pool
            before = pool.num_queries, pool.num_hits
            llm.generate(many, SamplingParams(max_tokens=1), use_tqdm=False)
            counts = pool.num_queries - before[0], pool.num_hits - before[1]
            answers = [[list(each.prompt_token_ids or ()), list(each.outputs[0].token_ids)] for each in found]
        sys.stdout.write(json.dumps([answers, counts]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
