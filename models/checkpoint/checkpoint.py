"""Finding a model and reading its configuration."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.other_formats import STATE_FILE, advice_for_names, advice_for_other_weights, is_gguf
from jaxllm.models.checkpoint.overrides import overridden
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError

DEMO = "demo"
SMALL_FILES = ["*.json", "*.jinja", "*.txt", "tokenizer*", "*.model"]
WEIGHT_FILES = ["*.safetensors", "*_linear.pt"]
TORCH_FILES = ["pytorch_model*.bin", "[1-9]_*/pytorch_model.bin", "*_linear.pt"]
OTHER_FORMATS = [
    "consolidated*",
    "[!1-9]*/*.safetensors",
    "*/tokenizer*",
    "*/*.model",
    "*/*.txt",
    "onnx/*",
    "openvino/*",
]
"""Copies of the weights in other layouts, which many repositories hold besides the usual one. Folders may hold small
configurations, such as 1_Pooling of sentence-transformers, and layers of their own, such as 2_Dense;
BGE-M3 has colbert_linear.pt and sparse_linear.pt."""

IRRELEVANT = (
    "*_pdrop",
    "*_token",
    "*_token_id",
    "*_token_ids",
    "*_token_index",
    "*dropout*",
    "_*",
    "architectures",
    "attn_implementation",
    "auto_map",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_pooling",
    "dtype",
    "finetuning_task",
    "gradient_checkpointing*",
    "id2label",
    "init*",
    "is_encoder_decoder",
    "is_matryoshka",
    "is_original_qwen3_reranker",
    "label2id",
    "language",
    "license",
    "matryoshka_dimensions",
    "max_length",
    "max_sequence_length",
    "max_tokenizer_truncation",
    "method",
    "model_type",
    "max_model_len",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    "position_embedding_type",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "sbert_ce_*",
    "sentence_transformers",
    "seq_length",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "unsloth_*",
    "use_bfloat16",
    "use_cache",
    "use_return_dict",
)
"""Options of any architecture that do not change what a model computes here, as patterns."""

_DTYPES = {"F64": "float32", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def resolve(
    model: str,
    revision: str | None = None,
    download_dir: str | None = None,
    token: str | None = None,
    *,
    weights: bool = True,
) -> Path:
    """The local folder of a model: 'demo', a folder, a hub id that is downloaded or found in the hub's cache, or a GGUF
    file, which gets a folder in the user's cache.

    Without `weights` only configuration and tokenizer are fetched. `HF_HUB_OFFLINE=1` keeps it from the network. The
    hub's `token` is by default that of its own client.
    Raises `ModelError` saying what was tried.
    """
    if model == DEMO:
        return Path(__file__).parent.parent / DEMO
    shown = model[:200]
    try:
        folder = Path(model).expanduser()
        is_folder, is_there = folder.is_dir(), folder.exists()
    # A name that is too long, or another user's home that is not there.
    except (OSError, RuntimeError):
        raise ModelError(f"model {shown!r}: there is no such folder, and no such model on the hub") from None
    if model and is_folder:
        return _with_config(folder)
    if model and is_there:
        if is_gguf(folder):
            return _of_gguf(folder)
        raise ModelError(f"model {shown!r} is a file; give the folder that holds config.json and the weights")
    if model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model or not model:
        raise ModelError(f"model {shown!r}: there is no such folder")
    return _from_hub(model, revision, download_dir, token, weights)


def _with_config(folder: Path) -> Path:
    """The folder, or what stands for the one GGUF file in it."""
    if (folder / "config.json").exists() or not any(map(is_gguf, folder.glob("*"))):
        return folder
    from jaxllm.models.checkpoint.weight_files import gguf_files

    return _of_gguf(gguf_files(folder)[0])


def _of_gguf(file: Path) -> Path:
    """The folder that stands for a GGUF file, which other models need nothing of."""
    from jaxllm.models.quantization.gguf.folder import gguf_folder

    return gguf_folder(file)


def config_file(folder: Path, overrides: Mapping[str, Any] | None = None) -> ConfigFile:
    """The config.json in `folder`, with `overrides` in place of its own values. Raises `ModelError`."""
    file = ConfigFile.read(folder / "config.json")
    return ConfigFile(overridden(file.values, overrides), f"{file.source} (with hf_overrides)") if overrides else file


def read_config(folder: Path, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """Configuration of the model in `folder`, from config.json and, for end tokens, generation_config.json.

    `overrides` are values in place of those in config.json.

    Raises `ModelError` for broken JSON, missing keys, impossible values and unknown architectures.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder}: config.json is not there, so this is not a model folder{advice_for_other_weights(folder)}"
        )
    file = config_file(folder, overrides)
    # Here, because models load JAX, which finding a folder (all that a server's own process does) has no need of.
    from jaxllm.models.families import registry
    from jaxllm.models.families.naming import architecture_of

    architecture = architecture_of(file)
    family = registry.lookup(architecture)
    config = family.read_config(file, architecture)
    # The latter is what compressed-tensors once wrote.
    section = file.section("quantization_config") or file.section("compression_config")
    if section is not None:
        if family.make_encoder is not None:
            raise ModelError(f"{file.source}: 'quantization_config' is set, and quantised encoders are not supported")
        from jaxllm.models.quantization.registry import method_of, read_format
        from jaxllm.models.quantization.types import with_format

        config = with_format(config, family.names_of(config), read_format(section))
        config = dataclasses.replace(config, weight_method=method_of(section))
    if not file.boolean("is_causal", True):
        # Embedders that were made of decoders, such as GTE-Qwen2.
        config = config.bidirectional()
    file.check_all_used(IRRELEVANT)
    changes: dict[str, object] = {"dtype": _dtype(folder, file)}
    if (folder / "generation_config.json").is_file():
        # As in transformers, the generation file has the last word on what ends a text.
        end = ConfigFile.read(folder / "generation_config.json").token_ids("eos_token_id")
        changes["eos_token_ids"] = end or config.eos_token_ids
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


def _dtype(folder: Path, file: ConfigFile) -> str:
    """The configuration's `dtype` (older: `torch_dtype`), or that of the largest tensor in the first file."""
    if file.has("dtype") or file.has("torch_dtype"):
        key = "dtype" if file.has("dtype") else "torch_dtype"
        name = file.text(key).removeprefix("torch.")
        if name == "float64":
            return "float32"
        if name not in _DTYPES.values():
            raise file.wrong(key, "one of float32, bfloat16, float16")
        return name
    from jaxllm.models.checkpoint.weight_files import checkpoint_files, read_tensors

    if (folder / STATE_FILE).is_file():
        return ConfigFile.read(folder / STATE_FILE).text("dtype", "float32")
    try:
        tensors = read_tensors(checkpoint_files(folder)[0])
    except ModelError:
        return "float32"  # No weights here, as with dummy ones; if they are needed, loading says what is wrong.
    # Those that are quantised have scales of no such type.
    largest = max(
        (each for each in tensors if each.dtype in _DTYPES), key=lambda tensor: tensor.end - tensor.start, default=None
    )
    return _DTYPES.get(largest.dtype, "float32") if largest else "float32"


def _from_hub(model: str, revision: str | None, download_dir: str | None, token: str | None, weights: bool) -> Path:
    # Imported here: it is slow, and a local folder does not need it.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def download(patterns: list[str]) -> Path:
        return Path(
            snapshot_download(
                model,
                revision=revision,
                cache_dir=download_dir,
                token=token,
                allow_patterns=patterns,
                ignore_patterns=OTHER_FORMATS,
            )
        )

    try:
        folder = download(SMALL_FILES + (WEIGHT_FILES if weights else []))
        if weights and not any(folder.glob("*.safetensors")):
            folder = download(TORCH_FILES)
            if not any(folder.glob("pytorch_model*.bin")):
                _check_listing(model, revision, token)
        return folder
    except ModelError:
        raise
    except HFValidationError:
        reason = "it is not a valid hub id (name or organisation/name)"
    except GatedRepoError:
        reason = "access on the hub is restricted: accept its terms there and set HF_TOKEN"
    except RevisionNotFoundError:
        reason = f"the hub has it, but not revision {revision!r}"
    except RepositoryNotFoundError:
        reason = "the hub has no such model (for a private one set HF_TOKEN)"
    except LocalEntryNotFoundError:
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        reason = f"it is not in the local hub cache, and {offline}"
    except Exception as error:  # noqa: BLE001 - the client's transport, and with it the type, changed with every version
        reason = f"downloading it from the hub failed: {type(error).__name__}: {(str(error) or '-').splitlines()[0]}"
    where = f" (revision {revision})" if revision else ""
    raise ModelError(f"model {model[:200]!r}{where}: there is no such local folder, and {reason}")


def _check_listing(model: str, revision: str | None, token: str | None) -> None:
    """Raise `ModelError` for a model on the hub whose weights are in other formats, which are not downloaded."""
    from huggingface_hub import list_repo_files

    try:
        files = list_repo_files(model, revision=revision, token=token)
    except Exception:  # noqa: BLE001 - without the hub, loading says that there are no weights
        return
    if not any(name.endswith(".safetensors") and "/" not in name for name in files):
        advice = advice_for_names(name for name in files if "/" not in name)
        if advice:
            raise ModelError(f"model {model!r}: its weights on the hub are not safetensors{advice}")
