"""How a model pools: from its configuration, from what sentence-transformers left beside it, and from the options."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jaxllm.config import ModelOptions
from jaxllm.errors import ConfigError, nearest
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.layers.projection import DenseLayer
from jaxllm.pooling.answers import ANSWERS, read_answers
from jaxllm.pooling.sentence_transformers import MODULES, read_sentence_transformers

PoolingType = Literal["last", "mean", "cls"]
POOLING_TYPES: tuple[PoolingType, ...] = ("last", "mean", "cls")
_ACTIVATIONS = {"identity": "none", "sigmoid": "sigmoid", "softmax": "softmax"}


@dataclass(frozen=True, kw_only=True)
class PoolingSettings:
    """What is done with hidden states.

    `use` is what requests get without asking; `pooling_type` which hidden states count; `normalize` and
    `use_activation` what happens where a request does not say. `labels` are the classes of a classifier, whose scores
    the `activation` makes probabilities of. `matryoshka` lists the dimensions that embeddings may be cut to; empty:
    all, None: none. `max_length` is the longest text the model's makers recommend. `answers` are two tokens, with their
    ids: the score of a language model without a classifier is the probability of the second where one of them comes.
    `dense` are layers behind the pooling of an embedder.
    """

    use: Literal["embed", "classify"]
    pooling_type: PoolingType
    normalize: bool = True
    use_activation: bool = True
    labels: tuple[str, ...] = ()
    activation: Literal["none", "sigmoid", "softmax"] = "softmax"
    matryoshka: tuple[int, ...] | None = None
    max_length: int | None = None
    answers: tuple[str, ...] = ()
    answer_ids: tuple[int, ...] = ()
    dense: tuple[DenseLayer, ...] = ()

    @property
    def num_labels(self) -> int | None:
        """Classes; None for an embedder."""
        return len(self.labels) if self.use == "classify" else None

    @property
    def tasks(self) -> tuple[str, ...]:
        """What requests may ask for, the default first."""
        if self.use == "embed":
            # Layers behind the pooling are not for single tokens.
            return ("embed",) if self.dense else ("embed", "token_embed")
        return ("classify", "token_classify", *(("score",) if len(self.labels) == 1 else ()))


def chosen_runner(options: ModelOptions, folder: Path, architecture: str) -> Literal["generate", "pooling"]:
    """Whether the model in `folder` generates or pools: as the options say, else as it is made for.

    Raises `ModelError` for an unknown architecture.
    """
    if options.runner != "auto":
        return options.runner
    made_for = registry.lookup(architecture).use
    pools = made_for != "generate" or options.convert in ("embed", "classify") or (folder / MODULES).is_file()
    pools = pools or bool(_given_answers(options, ConfigFile.read(folder / "config.json")))
    return "pooling" if pools else "generate"


def read_settings(options: ModelOptions, folder: Path, architecture: str) -> PoolingSettings:
    """How the model in `folder` pools. Raises `ConfigError` and `ModelError`."""
    family, file = registry.lookup(architecture), ConfigFile.read(folder / "config.json")
    given = _given_answers(options, file)
    if given and family.use == "generate":
        answers, answer_ids = read_answers(folder, given)
        settings = PoolingSettings(
            use="classify",
            pooling_type="last",
            labels=answers[1:],
            activation="sigmoid",
            answers=answers,
            answer_ids=answer_ids,
        )
        return _override(settings, options.pooler_config or {})
    use = family.use if options.convert in ("auto", "none") else options.convert
    if use == "generate":
        if options.convert == "none":
            raise ConfigError(
                f"convert='none': {architecture} generates; give convert='embed' or 'classify', or runner='generate'"
            )
        use = "embed"
    encoder = family.make_encoder is not None
    assert use in ("embed", "classify")
    settings = PoolingSettings(
        use=use,
        pooling_type=_pooling_type(file, use) if encoder else "last",
        labels=_labels(file) if use == "classify" else (),
        activation=_activation(file) if use == "classify" else "softmax",
        matryoshka=_matryoshka(file),
    )
    found = read_sentence_transformers(folder)
    if use == "embed" and found is not None:
        settings = replace(settings, pooling_type=found.pooling_type, normalize=found.normalize, dense=found.dense)
    if found is not None:
        settings = replace(settings, max_length=found.max_length)
    return _override(settings, options.pooler_config or {})


def _given_answers(options: ModelOptions, file: ConfigFile) -> Any:
    """`classifier_from_token`, from the options or the configuration; None without it."""
    return (options.pooler_config or {}).get(ANSWERS, file.values.get(ANSWERS))


def _pooling_type(file: ConfigFile, use: str) -> PoolingType:
    """What an encoder pools from: the first token, unless its classifier was trained otherwise."""
    how = file.text("classifier_pooling", "cls") if use == "classify" else "cls"
    if how not in ("cls", "mean"):
        raise file.wrong("classifier_pooling", "cls or mean")
    return "mean" if how == "mean" else "cls"


def _override(settings: PoolingSettings, given: Mapping[str, Any]) -> PoolingSettings:
    known = ("pooling_type", "normalize", "use_activation", "matryoshka", ANSWERS)
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"pooler_config: unknown key {name!r}{nearest(name, known)} (known: {', '.join(known)})")
        if name == "pooling_type":
            if str(value).lower() not in POOLING_TYPES:
                raise ConfigError(f"pooler_config: pooling_type={value!r}: choose one of {', '.join(POOLING_TYPES)}")
            settings = replace(settings, pooling_type=str(value).lower())  # type: ignore[arg-type]
        elif name == ANSWERS:
            if not settings.answers:
                raise ConfigError(f"pooler_config: {ANSWERS}: only models that generate choose between tokens")
        elif not isinstance(value, bool):
            raise ConfigError(f"pooler_config: {name}={value!r}: must be true or false")
        elif name == "matryoshka":
            settings = replace(settings, matryoshka=(settings.matryoshka or ()) if value else None)
        else:
            settings = replace(settings, **{name: value})  # type: ignore[arg-type]
    return settings


def _labels(file: ConfigFile) -> tuple[str, ...]:
    """Names of the classes, in order."""
    names = file.section("id2label")
    if names is None:
        # As in transformers, which leaves out what is its default.
        return tuple(f"LABEL_{index}" for index in range(file.integer("num_labels", 2)))
    try:
        return tuple(names.text(key) for key in sorted(names.values, key=int))
    except ValueError:
        raise file.wrong("id2label", "an object whose keys are numbers") from None


def _activation(file: ConfigFile) -> Literal["none", "sigmoid", "softmax"]:
    """What makes scores of a classifier: what a cross-encoder says, else what follows from the kind of problem."""
    inner = file.section("sentence_transformers")
    text = inner.text("activation_fn", "") if inner is not None else ""
    text = text or file.text("sbert_ce_default_activation_function", "")
    if text:
        name = text.rpartition(".")[2].lower()
        if name not in _ACTIVATIONS:
            raise ModelError(f"{file.source}: activation {text!r} is not supported (known: {', '.join(_ACTIVATIONS)})")
        return _ACTIVATIONS[name]  # type: ignore[return-value]
    problem = file.text("problem_type", "")
    if problem == "regression":
        return "none"
    if problem == "multi_label_classification" or len(_labels(file)) == 1:
        return "sigmoid"
    return "softmax"


def _matryoshka(file: ConfigFile) -> tuple[int, ...] | None:
    sizes = file.values.get("matryoshka_dimensions")
    if sizes is not None:
        if not isinstance(sizes, list) or not all(isinstance(each, int) and each > 0 for each in sizes):
            raise file.wrong("matryoshka_dimensions", "a list of positive integers")
        return tuple(sizes)
    return () if file.boolean("is_matryoshka", False) else None
