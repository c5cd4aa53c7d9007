"""The families that long tests take have everything that any family has."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxllm.models.checkpoint.model_config import read_config
from tests.models.every_family import FAMILIES, choices
from tests.models.stacks import COVERING


@pytest.mark.slow
def test_a_few_families_have_every_choice(tmp_path: Path) -> None:
    chosen = {}
    for name, family in FAMILIES.items():
        family.save(tmp_path / name)
        # The choices of towers and encoders of sound have their own tests.
        chosen[name] = choices(replace(read_config(tmp_path / name), tower=None, sound=None))
    covered = set.union(*(chosen[name] for name in COVERING))
    missing = {name: sorted(map(str, own - covered)) for name, own in chosen.items() if own - covered}
    assert not missing, "add some of these to COVERING"
