"""The table of decoders that are not here has each of transformers' that is not, and no other."""

from pathlib import Path

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from jaxllm.models.families import registry
from jaxllm.models.families.absent import ABSENT
from scripts.absent_models import page

PAGE = Path(__file__).parents[3] / "docs" / "absent-models.md"


def test_every_causal_class_is_here_or_has_a_reason() -> None:
    known = {name.lower() for name in registry.known_architectures()}
    absent = {name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() if name.lower() not in known}
    assert set(ABSENT) == absent
    assert all(ABSENT.values())


def test_the_page_is_that_of_the_table() -> None:
    assert PAGE.read_text() == page(), "run `python -m scripts.absent_models docs/absent-models.md`"
