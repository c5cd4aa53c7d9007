"""How a model pools: from its configuration, from what sentence-transformers left alongside it, and from the
options.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jaxllm.config import ModelOptions
from jaxllm.errors import ConfigError
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.model_config import config_file
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.families.family import Family
from jaxllm.models.families.uses import VECTOR_SIZES
from jaxllm.models.layers.projection import DenseLayer, Outputs, dense_in
from jaxllm.pooling.answers import ANSWERS, METHOD, read_answers
from jaxllm.pooling.sentence_transformers import MODULES, SentenceTransformers, read_sentence_transformers

PoolingType = Literal["last", "mean", "cls"]
_CALLED: dict[str, PoolingType] = {"last": "last", "mean": "mean", "avg": "mean", "cls": "cls"}
Activation = Literal["none", "sigmoid", "softmax", "by_labels"]
_ACTIVATIONS: Mapping[str, Activation] = {"identity": "none", "sigmoid": "sigmoid", "softmax": "softmax"}


@dataclass(frozen=True, kw_only=True)
class PoolingSettings:
    """What is done with hidden states.

    `use` is what requests get without asking; `pooling_type` which hidden states count; `normalize` and
    `use_activation` what happens where a request does not say. `labels` are the classes of a classifier, whose scores
    the `activation` makes probabilities of: with `by_labels` the sigmoid of one label or the softmax of several, since
    an adapter may have another number than the model. `matryoshka` lists the dimensions that embeddings may be cut to;
    empty: all, None: none. `max_length` is the longest text the model's makers recommend. `answers` are two tokens,
    with their ids: the score of a language model without a classifier is the probability of the second where one of
    them comes; of one token, it is the sigmoid of its logit.
    `dense` are layers after the pooling of an embedder, `token_dense` those for vectors of single tokens, and
    `lexical` those for a weight of each. `only` is the one task that is done, if it is one. Scores of tokens are those
    of tokens `step_token_id`, or of all. Results for tokens at the ends of a text are left out of a task where these
    are the two tokens that `left_out` names for it.
    """

    use: Literal["embed", "classify"]
    pooling_type: PoolingType
    normalize: bool = True
    use_activation: bool = True
    labels: tuple[str, ...] = ()
    activation: Activation = "softmax"
    matryoshka: tuple[int, ...] | None = None
    max_length: int | None = None
    answers: tuple[str, ...] = ()
    answer_ids: tuple[int, ...] = ()
    dense: tuple[DenseLayer, ...] = ()
    token_dense: tuple[DenseLayer, ...] = ()
    lexical: tuple[DenseLayer, ...] = ()
    only: str = ""
    step_token_id: int | None = None
    left_out: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)

    @property
    def of_tokens(self) -> bool:
        """Whether results are always of tokens, never of texts."""
        return self.only.startswith("token_")

    @property
    def outputs(self) -> Outputs:
        """The pooling of hidden states by the model."""
        return Outputs(
            labels=self.num_labels,
            dense=self.dense,
            token_dense=self.token_dense,
            lexical=self.lexical,
            answer_ids=self.answer_ids,
        )

    @property
    def token_tasks(self) -> tuple[str, ...]:
        """Tasks of tokens, of a model that does others, too."""
        return () if self.of_tokens else tuple(task for task in self.tasks if task.startswith("token_"))

    @property
    def num_labels(self) -> int | None:
        """Classes; None for an embedder."""
        return len(self.labels) if self.use == "classify" else None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The values that requests may ask for, the default first."""
        if self.only:
            return (self.only,)
        if self.use == "embed":
            # Layers after the pooling are not for single tokens.
            vectors = ("embed",) if self.dense and not self.token_dense else ("embed", "token_embed")
            return (*vectors, "token_classify") if self.lexical else vectors
        return ("classify", "token_classify", *(("score",) if len(self.labels) == 1 else ()))


def chosen_runner(options: ModelOptions, folder: Path, model: ModelConfig) -> Literal["generate", "pooling"]:
    """Whether the model in `folder` generates or pools: as the options say, else as it is made for."""
    if options.runner != "auto":
        return options.runner
    made_for = registry.lookup(model.architecture).use
    pools = (
        made_for != "generate"
        or not model.is_causal
        or options.convert in ("embed", "classify")
        or (folder / MODULES).is_file()
    )
    pools = pools or _answer_options(options, config_file(folder, options.hf_overrides)) is not None
    return "pooling" if pools else "generate"


def read_settings(options: ModelOptions, folder: Path, model: ModelConfig) -> PoolingSettings:
    """How the model in `folder` pools, before `pooler_config` changes it. Raises `ConfigError` and `ModelError`."""
    architecture = model.architecture
    family, file = registry.lookup(architecture), config_file(folder, options.hf_overrides)
    given = _answer_options(options, file)
    if given is not None and family.make_encoder is None:
        answers, answer_ids = read_answers(folder, given, file.values.get(METHOD))
        return PoolingSettings(
            use="classify",
            pooling_type="last",
            labels=answers[-1:],
            activation="sigmoid",
            answers=answers,
            answer_ids=answer_ids,
        )
    use = family.use if options.convert in ("auto", "none") else options.convert
    if use == "generate":
        if options.convert == "none":
            raise ConfigError(
                f"convert='none': {architecture} is a generative model; give convert='embed' or 'classify', or "
                "runner='generate'"
            )
        use = "embed"
    found = read_sentence_transformers(folder)
    if use in ("classify", "token_classify"):
        settings = _classifier(file, family, use)
    else:
        settings = PoolingSettings(use="embed", pooling_type=_pooling_type(file, family), matryoshka=_matryoshka(file))
        of_tokens = use == "token_embed" or (found is not None and found.is_late_interaction)
        settings = _late_interaction(settings, folder, file, family, found) if of_tokens else settings
        if not of_tokens and found is not None:
            settings = replace(settings, pooling_type=found.pooling_type, normalize=found.normalize, dense=found.dense)
        settings = _with_lexical_weights(settings, folder, file, family) if family.lexical_head else settings
    return settings if found is None else replace(settings, max_length=found.max_length)


def _answer_options(options: ModelOptions, file: ConfigFile) -> Any:
    """`classifier_from_token`, from the options or the configuration; None without it."""
    return (options.pooler_config or {}).get(ANSWERS, file.values.get(ANSWERS))


def _classifier(file: ConfigFile, family: Family, use: str) -> PoolingSettings:
    """Settings of a classifier, of texts or of tokens."""
    count = family.head.labels
    labels = _labels(file) if count is None else tuple(f"LABEL_{index}" for index in range(count))
    return PoolingSettings(
        use="classify",
        pooling_type=_pooling_type(file, family, "classifier_pooling"),
        labels=labels,
        # A reward is any number.
        activation="none" if count == 1 else _activation(file),
        only=use if use == "token_classify" else "",
        step_token_id=family.head.step_token_id,
    )


def _late_interaction(
    settings: PoolingSettings, folder: Path, file: ConfigFile, family: Family, found: SentenceTransformers | None
) -> PoolingSettings:
    """Settings of a model that makes a vector of each token, with the layers that follow it."""
    layers = found.dense if found is not None and found.dense else (dense_in(folder, family.token_head),)
    size = next((file.integer(key) for key in VECTOR_SIZES if file.has(key)), layers[-1].out_size)
    if size != layers[-1].out_size:
        key = next(key for key in VECTOR_SIZES if file.has(key))
        raise file.wrong(key, f"{layers[-1].out_size}, the output size of the layer applied to tokens")
    return replace(settings, only="token_embed", token_dense=layers)


def _with_lexical_weights(settings: PoolingSettings, folder: Path, file: ConfigFile, family: Family) -> PoolingSettings:
    """Settings of a model whose tokens have vectors and weights, too, but not those around a text."""
    weight = replace(dense_in(folder, family.lexical_head), activation="ReLU")
    if weight.out_size != 1:
        raise ModelError(f"{folder / family.lexical_head}: weight has {weight.out_size} rows, expected 1")
    first, last = file.integer("bos_token_id", 0, minimum=0), file.integer("eos_token_id", 2, minimum=0)
    left_out = {"token_embed": (first, None), "token_classify": (first, last)}
    return replace(settings, token_dense=(dense_in(folder, family.token_head),), lexical=(weight,), left_out=left_out)


def _pooling_type(file: ConfigFile, family: Family, key: str = "pooling") -> PoolingType:
    """The pooled tokens: an encoder's first token, or what a `key` of the configuration says; a decoder's last one."""
    default: PoolingType = "last" if family.make_encoder is None else "cls"
    how = file.text(key, default) if file.has(key) else default
    if how not in _CALLED:
        raise file.wrong(key, ", ".join(_CALLED))
    return _CALLED[how]


def _labels(file: ConfigFile) -> tuple[str, ...]:
    """Names of the classes, in order."""
    names = file.section("id2label")
    if file.values.get("id2label") == {}:
        raise file.wrong("id2label", "an object with the name of at least one class")
    if names is None:
        # As in transformers, which leaves out what is its default.
        return tuple(f"LABEL_{index}" for index in range(file.integer("num_labels", 2)))
    try:
        return tuple(names.text(key) for key in sorted(names.values, key=int))
    except ValueError:
        raise file.wrong("id2label", "an object whose keys are numbers") from None


def _activation(file: ConfigFile) -> Activation:
    """What makes scores of a classifier: what a cross-encoder says, else what follows from the kind of problem."""
    inner = file.section("sentence_transformers")
    text = inner.text("activation_fn", "") if inner is not None else ""
    text = text or file.text("sbert_ce_default_activation_function", "")
    if text:
        name = text.rpartition(".")[2].lower()
        if name not in _ACTIVATIONS:
            raise ModelError(f"{file.source}: activation {text!r} is not supported (known: {', '.join(_ACTIVATIONS)})")
        return _ACTIVATIONS[name]
    problem = file.text("problem_type", "")
    if problem == "regression":
        return "none"
    return "sigmoid" if problem == "multi_label_classification" else "by_labels"


def _matryoshka(file: ConfigFile) -> tuple[int, ...] | None:
    sizes = file.values.get("matryoshka_dimensions")
    if sizes is not None:
        if not isinstance(sizes, list) or not all(isinstance(each, int) and each > 0 for each in sizes):
            raise file.wrong("matryoshka_dimensions", "a list of positive integers")
        return tuple(sizes)
    return () if file.boolean("is_matryoshka", False) else None
