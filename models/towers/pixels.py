"""How a checkpoint's images become numbers, as the file of its image processor says."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.towers.plan import PixelPlan, TowerPlan, program_sizes

PROCESSOR, PREPROCESSOR = "processor_config.json", "preprocessor_config.json"
TOKENIZER, ADDED_TOKENS, WHOLE_TOKENIZER = "tokenizer_config.json", "added_tokens.json", "tokenizer.json"


def read_pixels(folder: Path, default: PixelPlan, channels: int) -> PixelPlan:
    """The plan of the checkpoint in `folder`; `default` where it has no such file. Raises `ModelError`."""
    file = _image_processor(folder)
    if file is None:
        return default
    rescale = file.number("rescale_factor", default.rescale) if file.boolean("do_rescale", True) else 1.0
    if not file.boolean("do_normalize", True):
        return PixelPlan((0.0,) * channels, (1.0,) * channels, rescale, is_fine=default.is_fine)
    mean, std = (
        tuple(file.numbers(key)) if file.has(key) else own
        for key, own in (("image_mean", default.mean), ("image_std", default.std))
    )
    if len(mean) != channels or len(std) != channels or 0.0 in std:
        raise file.wrong("image_mean", f"{channels} numbers, and image_std as many that are not 0")
    rounds = default.rounds and file.boolean("do_rescale", True)
    return PixelPlan(mean, std, rescale, rounds=rounds, is_fine=default.is_fine)


def with_token(folder: Path, tower: TowerPlan) -> TowerPlan:
    """The tower with the number of its token, whose text is known, where the tokenizer's files say it."""
    if tower.token is None:
        return tower
    number = next((numbers[tower.token] for numbers in _added_tokens(folder) if tower.token in numbers), None)
    return tower if number is None else replace(tower, token_id=number)


def _added_tokens(folder: Path) -> Iterator[dict[str, int]]:
    """Numbers of added tokens by their texts, of the files that there are, the largest one last."""
    if (folder / TOKENIZER).is_file():
        section = ConfigFile.read(folder / TOKENIZER).section("added_tokens_decoder")
        found = {} if section is None else section.values
        yield {
            each["content"]: int(number)
            for number, each in found.items()
            if isinstance(each, dict) and "content" in each and number.isdecimal()
        }
    if (folder / ADDED_TOKENS).is_file():
        yield dict(ConfigFile.read(folder / ADDED_TOKENS).values)
    if (folder / WHOLE_TOKENIZER).is_file():
        listed = ConfigFile.read(folder / WHOLE_TOKENIZER).values.get("added_tokens") or []
        yield {
            each["content"]: each["id"] for each in listed if isinstance(each, dict) and {"content", "id"} <= set(each)
        }


def with_most_rows(folder: Path, tower: TowerPlan) -> TowerPlan:
    """The tower with programs for images of as many rows as the checkpoint's file says, if that decides."""
    file = None if tower.most_rows_field is None else _image_processor(folder)
    if file is None or not file.has(tower.most_rows_field or ""):
        return tower
    most = file.integer(tower.most_rows_field or "") * tower.patches_per_row
    return replace(tower, sizes=program_sizes(most, tower.patches_per_row))


def _image_processor(folder: Path) -> ConfigFile | None:
    """The part of the files about images. The newer one has a section of it, the older one is nothing else."""
    path = folder / PROCESSOR
    if path.is_file():
        section = ConfigFile.read(path).section("image_processor")
        if section is not None:
            return section
    path = folder / PREPROCESSOR
    return ConfigFile.read(path) if path.is_file() else None
