"""Options of speculative decoding."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from jaxllm.config.option import Section, option
from jaxllm.errors import ConfigError, nearest

Method = Literal["ngram", "suffix", "mtp", "eagle3", "mlp_speculator", "draft_model"]
"""Where drafts come from."""

METHODS: tuple[str, ...] = get_args(Method)

FIRST_TOKENS, MOST_TOKENS = 7, 31
"""Drafts of a request in a step: by default, and at most. One token and 7 drafts fill the smallest step of several."""

FIRST_DEVICE_TOKENS = 3
"""Drafts by default where the device makes them, one after the other."""

LONGEST_NGRAM = 16
FIRST_MIN, FIRST_MAX = 2, 5
FIRST_CACHED_TOKENS, MOST_CACHED_TOKENS = 1 << 16, 1 << 24

_NOT_YET = (
    "eagle", "medusa", "ngram_gpu", "dflash", "dspark", "custom_class",
)  # fmt: skip
_WITHOUT_EFFECT = (
    "acceptance_method", "disable_logprobs", "disable_padded_drafter_batch", "draft_sample_method",
    "draft_tensor_parallel_size", "enforce_eager", "max_model_len", "moe_backend", "parallel_drafting", "quantization",
    "rejection_sample_method", "code_revision", "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob",
)  # fmt: skip
"""Keys of vLLM's that change nothing: they are about models that draft, about ways to accept other tokens, or about
how many drafts there are, which is measured here."""


_MTP_NAMES = (
    "deepseek_mtp", "ernie_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp", "qwen3_next_mtp", "qwen3_5_mtp",
)  # fmt: skip
"""vLLM's names of the same method for single families."""

_APART = ("eagle3", "mlp_speculator", "draft_model")
"""Methods whose drafters have a folder of their own."""

_CHOICE = f"{', '.join(METHODS[:-1])} or {METHODS[-1]}"


@dataclass(frozen=True)
class Drafting:
    """How drafts are made."""

    method: str
    num_tokens: int = FIRST_TOKENS
    """Most drafts of a request in a step."""
    ngram_min: int = FIRST_MIN
    ngram_max: int = FIRST_MAX
    """Fewest and most last tokens that are looked for."""
    max_cached_tokens: int = FIRST_CACHED_TOKENS
    """Tokens of earlier outputs that are kept for each owner."""
    most_requests: int | None = None
    """Where more requests decode there are no drafts."""
    model: str | None = None
    """Folder or Hub ID of the drafter, where it is not part of the model."""
    revision: str | None = None

    @property
    def on_device(self) -> bool:
        """Whether the devices make the drafts."""
        return self.method not in ("ngram", "suffix")


@dataclass(frozen=True, kw_only=True)
class SpeculationOptions(Section):
    """Speculative decoding."""

    speculative_config: Mapping[str, Any] | None = option(
        None,
        "Speculative decoding, as JSON or as --speculative-config.KEY VALUE: method (ngram, suffix, mtp, eagle3, "
        "mlp_speculator or draft_model), model, num_speculative_tokens, prompt_lookup_min, prompt_lookup_max, "
        "suffix_decoding_max_cached_tokens, disable_by_batch_size. Outputs are the same with and without it.",
        aliases=("-sc",),
    )
    spec_method: Literal["ngram", "suffix", "mtp", "eagle3", "mlp_speculator", "draft_model"] | None = option(
        None,
        "Where guesses at the next tokens come from; ngram: what followed the last tokens earlier in the prompt or "
        "output; suffix: also what followed them in earlier outputs of the same owner; mtp: the layer for it that "
        "checkpoints of DeepSeek V3, GLM-4.5, ERNIE 4.5, Qwen3-Next and their like have; eagle3, mlp_speculator and "
        "draft_model: the drafter in the folder --spec-model. Default: no guesses.",
    )
    speculative_model: str | None = option(
        None,
        "Folder or Hub ID of what makes the guesses: an EAGLE-3 drafter or an MLP speculator of this model, or a "
        "small model with the same tokens. demo-eagle3 ships with jaxllm, for demo. [ngram] is the same as "
        "--spec-method ngram.",
        aliases=("spec-model",),
    )
    num_speculative_tokens: int | None = option(
        None,
        f"Most guesses per request and step. Default: {FIRST_TOKENS}, or {FIRST_DEVICE_TOKENS} where a model makes "
        "them. A step has fewer, or none, where more would take longer than they save.",
        minimum=1,
        maximum=MOST_TOKENS,
        aliases=("spec-tokens",),
    )
    ngram_prompt_lookup_max: int | None = option(
        None,
        f"Most last tokens that are looked for in prompt and output. Default: {FIRST_MAX}.",
        minimum=1,
        maximum=LONGEST_NGRAM,
    )
    ngram_prompt_lookup_min: int | None = option(
        None,
        f"Fewest last tokens that are looked for. Default: {FIRST_MIN}.",
        minimum=1,
        maximum=LONGEST_NGRAM,
    )
    speculative_disable_by_batch_size: int | None = option(
        None, "Make no guesses while more requests than this decode. Default: no limit.", minimum=1
    )
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = option(
        "none",
        "Return how many guesses for a request were right: of LLM.generate as spec_decode_metrics of each output, of "
        "the server as metrics.speculative_decoding of chats and completions with a single choice; detailed: with "
        "histograms.",
    )

    @property
    def drafting(self) -> Drafting | None:
        """How drafts are made; None: not at all. Raises `ConfigError`."""
        given = self._given()
        if not given:
            return None
        method = given.get("method")
        if method in _MTP_NAMES:
            method = "mtp"
        if method is None:
            raise ConfigError(
                "speculative_config: method is missing; give one of " + ", ".join(METHODS) + ", or --spec-method"
            )
        if (method in _APART) != ("model" in given):
            lacking = "give the folder or Hub ID of the drafter" if "model" not in given else "omit it"
            raise ConfigError(f"speculative_config: method={method!r}: model={given.get('model')!r}: {lacking}")
        if method in _NOT_YET:
            raise ConfigError(f"speculative_config: method={method!r} is not supported yet; choose {_CHOICE}")
        if method not in METHODS:
            raise ConfigError(f"speculative_config: method={method!r}{nearest(str(method), METHODS)}; choose {_CHOICE}")
        largest = _number(given, "prompt_lookup_max", LONGEST_NGRAM)
        smallest = _number(given, "prompt_lookup_min", LONGEST_NGRAM)
        if largest is None:
            largest = max(FIRST_MAX, smallest or 0)
        if smallest is None:
            smallest = min(FIRST_MIN, largest)
        if smallest > largest:
            raise ConfigError(
                f"speculative_config: prompt_lookup_min={smallest} must be at most prompt_lookup_max={largest}"
            )
        return Drafting(
            method=method,
            num_tokens=_number(given, "num_speculative_tokens", MOST_TOKENS)
            or (FIRST_TOKENS if method in ("ngram", "suffix") else FIRST_DEVICE_TOKENS),
            ngram_min=smallest,
            ngram_max=largest,
            max_cached_tokens=_number(given, "suffix_decoding_max_cached_tokens", MOST_CACHED_TOKENS)
            or FIRST_CACHED_TOKENS,
            most_requests=_number(given, "disable_by_batch_size", None),
            model=given.get("model"),
            revision=given.get("revision"),
        )

    def _given(self) -> dict[str, Any]:
        """The keys of `speculative_config`, whichever option gives them."""
        given = {key: value for key, value in (self.speculative_config or {}).items() if value is not None}
        for name in given:
            if name not in (*_KEYS, *_OWN_KEYS, *_WITHOUT_EFFECT):
                raise ConfigError(f"speculative_config: unknown key {name!r}{nearest(name, [*_KEYS, *_OWN_KEYS])}")
        model = given.pop("model", self.speculative_model)
        if model in ("ngram", "[ngram]"):
            given.setdefault("method", "ngram")
        elif model is not None:
            given["model"] = model
        for key, option_name in _KEYS.items():
            value = getattr(self, option_name)
            if value is not None and given.setdefault(key, value) != value:
                raise ConfigError(f"{option_name}={value!r}: speculative_config has {key}={given[key]!r}; give one")
        if "model" in given:
            given.setdefault("method", "draft_model")
        return {key: value for key, value in given.items() if key not in _WITHOUT_EFFECT}


_KEYS = {
    "method": "spec_method",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_max": "ngram_prompt_lookup_max",
    "prompt_lookup_min": "ngram_prompt_lookup_min",
    "disable_by_batch_size": "speculative_disable_by_batch_size",
}
"""Keys of `speculative_config`, and the options that stand for them."""


_OWN_KEYS = ("model", "revision", "suffix_decoding_max_cached_tokens")
"""Keys without an option."""


def _number(given: Mapping[str, Any], key: str, most: int | None) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if type(value) is not int or value < 1 or (most is not None and value > most):
        bounds = "an integer of at least 1" if most is None else f"an integer from 1 to {most}"
        raise ConfigError(f"speculative_config: {key}={value!r} must be {bounds}")
    return value
