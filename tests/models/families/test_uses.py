"""Decoders as classifiers of texts and of tokens: scores are those of transformers, for texts packed side by side."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import nnx

from jaxllm.models.batch import PackedSequences
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.families import registry
from jaxllm.models.layers.projection import Outputs
from jaxllm.models.options import ForwardOptions
from jaxllm.models.pooling_model import PoolingModel, load_pooling_model
from jaxllm.pallas_kernels.segment_attention.segments import Segments
from tests.models.families.test_decoders import CASES as GPT_LIKE
from tests.models.test_expert_families import CASES as EXPERTS
from tests.models.test_families import CASES
from tests.models.test_parity import SMALL

LABELS, PLACES = 3, 32
OPTIONS = ForwardOptions(max_model_len=64, one_layer_cache=True)
random = np.random.default_rng(2)
TEXTS = [random.integers(3, SMALL["vocab_size"], length).tolist() for length in (1, 19, 6)]

ALL: list[Any] = [*EXPERTS.values(), *GPT_LIKE.values(), *CASES.values()]
KNOWN: dict[str, Any] = {case.name: case for case in reversed(ALL)}
"""The first case of each family."""
CHOSEN = ("Exaone4", "Falcon", "Gemma2", "GPTNeoX", "OPT", "Phi", "Qwen2Moe")
"""Those in the suite: a family of every structure."""


def save(folder: Path, name: str, auto: Any) -> torch.nn.Module:
    """A random classifier of this family."""
    config_class = getattr(transformers, f"{name}Config")
    known = {*config_class.__annotations__, *config_class.attribute_map, "vocab_size", "num_labels"}
    known |= {key for each in config_class.__mro__ for key in getattr(each, "__annotations__", ())}
    small = {key: value for key, value in SMALL.items() if key in known}
    case = KNOWN[name]
    oracle = getattr(case, "oracle", "eager")
    config = config_class(**{**small, **case.options}, num_labels=LABELS, attn_implementation=oracle)
    torch.manual_seed(0)
    model: torch.nn.Module = auto.from_config(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            around = 1.0 if parameter.ndim == 1 and parameter_name.endswith("weight") else 0.0
            parameter.copy_(torch.randn_like(parameter) * 0.15 + around)
    model.save_pretrained(folder)
    return model


def packed() -> PackedSequences:
    """The texts one after the other, and padding."""
    lengths = [len(text) for text in TEXTS]
    ends = np.cumsum(lengths)
    token_ids, rows = np.zeros(PLACES, np.int32), np.zeros(PLACES, np.int32)
    token_ids[: ends[-1]] = np.concatenate(TEXTS)
    rows[: ends[-1]] = np.repeat(np.arange(len(TEXTS)), lengths)
    starts = np.array([0, *ends, ends[-1]], np.int32)
    segments = Segments(*(jnp.asarray(each) for each in (starts, rows, np.int32(ends[-1]), np.int32(len(TEXTS)))))
    return PackedSequences(jnp.asarray(token_ids), jnp.zeros(PLACES, jnp.int32), segments)


def scores_of(folder: Path) -> list[np.ndarray]:
    """Of all tokens of each text, [length, labels]."""
    config = read_config(folder)
    model = load_pooling_model(Checkpoint(folder), config, OPTIONS, "float32", Outputs(labels=LABELS))

    def run(model: PoolingModel, texts: PackedSequences) -> jax.Array:
        return model.scores(model(texts))

    graph, state = nnx.split(model)
    scores = np.asarray(jax.jit(lambda state, texts: run(nnx.merge(graph, state), texts))(state, packed()))
    ends = np.cumsum([len(text) for text in TEXTS])
    return [scores[end - len(text) : end] for end, text in zip(ends, TEXTS, strict=True)]


def check(folder: Path, name: str, auto: Any) -> None:
    """Compare the scores of whole texts, or of tokens."""
    model = save(folder, name, auto)
    for text, found in zip(TEXTS, scores_of(folder), strict=True):
        with torch.no_grad():
            wanted = model(torch.tensor([text])).logits[0].numpy()
        np.testing.assert_allclose(found if wanted.ndim == 2 else found[-1], wanted, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_classifiers_of_texts(tmp_path: Path, name: str) -> None:
    check(tmp_path, name, transformers.AutoModelForSequenceClassification)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Falcon"])
def test_classifiers_of_tokens(tmp_path: Path, name: str) -> None:
    check(tmp_path, name, transformers.AutoModelForTokenClassification)


def test_all_classifiers_of_transformers_are_known() -> None:
    kinds = transformers.AutoModelForSequenceClassification, transformers.AutoModelForTokenClassification
    # Causal BERTs are encoders in other uses.
    for name in (name for name, case in KNOWN.items() if "is_decoder" not in case.options):
        config = getattr(transformers, f"{name}Config")
        for auto in kinds:
            mapping = auto._model_mapping
            if config in mapping:
                assert registry.lookup(mapping[config].__name__).use in ("classify", "token_classify")
