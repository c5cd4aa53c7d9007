"""Adapters over several devices: the tokens are those of one."""

from pathlib import Path

import pytest

from tests.adapter_folders import write_adapter
from tests.e2e.driving import make_engine, run
from tests.e2e.test_adapters import OPTIONS, prompts, with_adapter

WAYS = (
    {"tensor_parallel_size": 2, "layer_stack": "scan"},
    {"pipeline_parallel_size": 2},
    {"mesh": "data=2"},
)


def tokens(folders: list[Path], **options: object) -> list[list[int]]:
    """The tokens of eight requests, with four adapters in two slots, and some with none."""
    engine = make_engine(
        **{
            **OPTIONS,
            "max_num_batched_tokens": 8,
            "enable_lora": True,
            "max_loras": 2,
            "max_lora_rank": 8,
            "dtype": "float32",
            "lora_vectors": True,
            **options,
        }
    )
    try:
        requests = [
            with_adapter(str(index), prompt, folders[index % 4] if index % 5 < 4 else None)
            for index, prompt in enumerate(prompts(8))
        ]
        return [answer.token_ids for _, answer in sorted(run(engine, requests).items())]
    finally:
        engine.close()


@pytest.mark.slow
def test_several_devices_give_the_tokens_of_one(tmp_path: Path) -> None:
    folders = [write_adapter(tmp_path / str(seed), seed, scale=0.3, use_dora=seed % 2 == 1) for seed in range(4)]
    wanted = tokens(folders)
    for way in WAYS:
        assert tokens(folders, **way) == wanted, way
