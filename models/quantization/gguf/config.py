"""The configuration of a model from the metadata of its GGUF file, as its config.json has it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.gguf.architectures import Architecture, architecture_of
from jaxllm.models.quantization.gguf.file import GgufFile, GgufTensor

_SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
"""The keys that every file has, and nothing else could replace."""

_IRRELEVANT = ("rope.scaling.finetuned", "attention.causal", "tensor_data_layout", "vocab_size")
_YARN = {"rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow"}
_YARN_FIXED = {
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
"""Options of YaRN that are left at what llama.cpp takes without them; -1 means the same."""
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""llama.cpp knows by their layers those whose scores are divided by another number; the files do not say it."""


def read_model_config(file: GgufFile) -> dict[str, Any]:
    """The configuration. Raises `ModelError` naming the key of metadata that is missing, impossible or unknown."""
    return _Keys(file, architecture_of(file)).config()


class _Keys:
    """The metadata of an architecture. What was looked at is remembered."""

    def __init__(self, file: GgufFile, architecture: Architecture) -> None:
        self._file, self._architecture, self._name = file, architecture, file.architecture
        self._used: set[str] = set()

    def config(self) -> dict[str, Any]:
        """All of it."""
        config: dict[str, Any] = {"architectures": [self._architecture.model], "dtype": self._dtype()}
        config |= {theirs: self._integer(ours) for ours, theirs in _SIZES.items()}
        config["rms_norm_eps"] = self._number("attention.layer_norm_rms_epsilon")
        config["num_key_value_heads"] = self._integer("attention.head_count_kv", config["num_attention_heads"])
        config["vocab_size"] = self._vocabulary()
        config["tie_word_embeddings"] = "output.weight" not in self._file.names
        config |= self._tokens()
        config |= self._heads(config)
        config |= self._ropes(config)
        config |= _OWN.get(self._architecture.model, _nothing)(self, config)
        self._check_all_used()
        return config

    def _heads(self, config: dict[str, Any]) -> dict[str, Any]:
        if config["num_attention_heads"] < 1:
            raise self.wrong("attention.head_count", "positive")
        plain = config["hidden_size"] // config["num_attention_heads"]
        size = self._integer("attention.key_length", plain)
        if self._integer("attention.value_length", size) != size:
            raise self.wrong("attention.value_length", f"equal to that of keys, {size}")
        rotated = self._integer("rope.dimension_count", size)
        if rotated != size and self._architecture.model != "Phi3ForCausalLM":
            raise self.wrong("rope.dimension_count", f"the size of a head, {size}")
        partial = {"partial_rotary_factor": rotated / size} if rotated != size else {}
        return {"head_dim": size, **partial}

    def _ropes(self, config: dict[str, Any]) -> dict[str, Any]:
        rope: dict[str, Any] = {"rope_theta": self._number("rope.freq_base", 10000.0)}
        kind = self._text("rope.scaling.type", "none")
        factor = self._number("rope.scaling.factor", 1.0)
        trained = self._integer("rope.scaling.original_context_length", config["max_position_embeddings"])
        attention = self._number("rope.scaling.attn_factor", 1.0)
        if kind == "yarn" and factor != 1:
            rope["rope_scaling"] = {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": trained,
                **self._yarn(),
            }
        elif kind == "linear" and factor != 1:
            rope["rope_scaling"] = {"rope_type": "linear", "factor": factor}
        elif kind not in ("none", "linear", "yarn", "longrope"):
            raise self.wrong("rope.scaling.type", "none, linear, yarn or longrope")
        factors = self._factors()
        if factors:
            if "rope_scaling" in rope:
                raise self.wrong("rope.scaling.type", "none if the file has factors per frequency")
            short, long = factors
            rope["rope_scaling"] = {
                "rope_type": "longrope",
                "short_factor": short,
                "long_factor": long,
                "attention_factor": attention,
                "original_max_position_embeddings": trained,
            }
            if self._architecture.model == "Phi3ForCausalLM":
                rope["original_max_position_embeddings"] = trained
        elif attention != 1:
            raise self.wrong("rope.scaling.attn_factor", "1 if the file has no factors per frequency")
        return rope

    def _yarn(self) -> dict[str, Any]:
        """Between which frequencies YaRN goes from one scale to the other, if the file says so."""
        for key, plain in _YARN_FIXED.items():
            if self._number(key, plain) not in (plain, -plain):
                raise self.wrong(key, f"{plain:g}")
        return {theirs: self._number(ours) for ours, theirs in _YARN.items() if self.get(ours) is not None}

    def _factors(self) -> tuple[list[float], list[float]] | None:
        """The divisors of frequencies, in short texts and in long ones, if that is in the file."""
        tensors = {tensor.name: tensor for tensor in self._file.tensors}
        if "rope_freqs.weight" in tensors:
            both = _numbers(tensors["rope_freqs.weight"])
            return both, both
        names = ("rope_factors_short.weight", "rope_factors_long.weight")
        if not tensors.keys() & set(names):
            return None
        if not tensors.keys() >= set(names):
            raise ModelError(f"{self._file.path}: has only one of {names[0]!r} and {names[1]!r}")
        short, long = (_numbers(tensors[name]) for name in names)
        return short, long

    def _vocabulary(self) -> int:
        """Rows of the embedding, which may be more than there are tokens."""
        embedding = next((each for each in self._file.tensors if each.name == "token_embd.weight"), None)
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError(f"{self._file.path}: the matrix 'token_embd.weight' is missing")
        return embedding.shape[0]

    def _tokens(self) -> dict[str, Any]:
        """Ids of tokens; a text ends with any that ends a turn or a message, too."""
        ids: dict[str, int] = {}
        for name in ("bos", "eos", "eot", "eom"):
            value = self._file.metadata.get(f"tokenizer.ggml.{name}_token_id")
            if value is not None:
                if not isinstance(value, int) or isinstance(value, bool):
                    raise self._file.wrong(f"tokenizer.ggml.{name}_token_id", "a token id")
                ids[name] = value
        ends = list(dict.fromkeys(ids[name] for name in ("eos", "eot", "eom") if name in ids))
        return {"bos_token_id": ids.get("bos"), "eos_token_id": ends or None}

    def _dtype(self) -> str:
        """Type of unquantized matrices; bfloat16 if all are quantized."""
        types = {tensor.type for tensor in self._file.tensors if len(tensor.shape) > 1}
        if types == {"F32"}:
            return "float32"
        return "float16" if "F16" in types and not types - {"F16", "F32"} else "bfloat16"

    def _check_all_used(self) -> None:
        for key in self._file.metadata:
            own = key.removeprefix(f"{self._name}.")
            if own != key and key not in self._used and own not in _IRRELEVANT:
                value = str(self._file.metadata[key])[:80]
                raise ModelError(
                    f"{self._file.path}: {key!r} = {value} is unknown for this architecture, and may change what the "
                    "model computes"
                )

    def _integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu" and (value == value[0]).all():
            value = int(value[0])  # One for each layer.
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(key, "an integer, the same for all layers")
        return value

    def _number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not np.isfinite(value):
            raise self.wrong(key, "a finite number")
        return float(value)

    def _text(self, key: str, default: str) -> str:
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key of the architecture, or the default."""
        self._used.add(f"{self._name}.{key}")
        return self._file.metadata.get(f"{self._name}.{key}", default)

    def wrong(self, key: str, expected: str) -> ModelError:
        """The error for a value that cannot be used."""
        return self._file.wrong(f"{self._name}.{key}", expected)

    def experts(self, config: dict[str, Any]) -> dict[str, Any]:
        """Qwen 3's."""
        return {
            "num_experts": self._integer("expert_count"),
            "num_experts_per_tok": self._integer("expert_used_count"),
            "moe_intermediate_size": self._integer("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }

    def mixtral(self, config: dict[str, Any]) -> dict[str, Any]:
        """Mixtral's; it has no windows."""
        counts = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
        return {"sliding_window": None, **{theirs: self._integer(ours) for theirs, ours in counts.items()}}

    def phi3(self, config: dict[str, Any]) -> dict[str, Any]:
        """Phi 3's window."""
        return {"sliding_window": self._integer("attention.sliding_window", 0) or None}

    def llama(self, config: dict[str, Any]) -> dict[str, Any]:
        """Llama's biases: the tensors tell whether there are any."""
        self._used.update(f"{self._name}.{key}" for key in ("expert_count", "expert_used_count"))
        return {"attention_bias": "blk.0.attn_q.bias" in self._file.names}

    def gemma(self, config: dict[str, Any]) -> dict[str, Any]:
        """Values of all three Gemmas that are not the default."""
        is_largest = config["num_hidden_layers"] == _GEMMA_27B_LAYERS.get(self._name)
        heads = config["hidden_size"] // config["num_attention_heads"]
        found: dict[str, Any] = {"hidden_activation": "gelu_pytorch_tanh"}
        if self._name == "gemma":
            return found
        found["query_pre_attn_scalar"] = heads if is_largest else config["head_dim"]
        found["sliding_window"] = self._integer("attention.sliding_window", 4096)
        if self._name == "gemma2":
            caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
            return found | {key: self._number(key, cap) for key, cap in caps.items()}
        local = self._number("rope.freq_base_swa", 10000.0)
        return found | {"rope_local_base_freq": local, "sliding_window_pattern": 6}


def _nothing(keys: _Keys, config: dict[str, Any]) -> dict[str, Any]:
    return {}


_OWN: dict[str, Callable[[_Keys, dict[str, Any]], dict[str, Any]]] = {
    "LlamaForCausalLM": _Keys.llama,
    "MixtralForCausalLM": _Keys.mixtral,
    "Qwen3MoeForCausalLM": _Keys.experts,
    "Phi3ForCausalLM": _Keys.phi3,
    "GemmaForCausalLM": _Keys.gemma,
    "Gemma2ForCausalLM": _Keys.gemma,
    "Gemma3ForCausalLM": _Keys.gemma,
}


def _numbers(tensor: GgufTensor) -> list[float]:
    """The numbers of a small tensor in float32."""
    if tensor.type != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > 65536:
        raise ModelError(f"{tensor.path}: tensor {tensor.name!r} is {list(tensor.shape)} of {tensor.type}, not F32")
    with tensor.path.open("rb") as file:
        file.seek(tensor.start)
        found = np.frombuffer(file.read(tensor.end - tensor.start), "<f4")
    if not np.isfinite(found).all() or not (found > 0).all():
        raise ModelError(f"{tensor.path}: tensor {tensor.name!r} has factors that are not positive")
    return [float(number) for number in found]
