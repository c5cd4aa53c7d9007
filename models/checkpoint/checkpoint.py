"""Finding a model and reading its configuration."""

import dataclasses
from pathlib import Path

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.other_formats import NO_GGUF, advice_for_names, advice_for_other_weights
from jaxllm.models.checkpoint.safetensors_file import read_header
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError

DEMO = "demo"
SMALL_FILES = ["*.json", "*.jinja", "*.txt", "tokenizer*", "*.model"]
WEIGHT_FILES = ["*.safetensors"]
OTHER_FORMATS = [
    "consolidated*",
    "[!2-9]*/*.safetensors",
    "*/tokenizer*",
    "*/*.model",
    "*/*.txt",
    "onnx/*",
    "openvino/*",
]
"""Copies of the weights in other layouts, which many repositories hold beside the usual one. Folders may hold small
configurations, such as 1_Pooling of sentence-transformers, and layers of their own, such as 2_Dense."""

_DTYPES = {"F64": "float32", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def resolve(model: str, revision: str | None = None, download_dir: str | None = None, *, weights: bool = True) -> Path:
    """The local folder of a model: 'demo', a folder, or a hub id that is downloaded or found in the hub's cache.

    Without `weights` only configuration and tokenizer are fetched. `HF_HUB_OFFLINE=1` keeps it from the network.
    Raises `ModelError` saying what was tried.
    """
    if model == DEMO:
        return Path(__file__).parent.parent / DEMO
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        return folder
    if model and folder.exists():
        advice = (
            f": {NO_GGUF}" if folder.suffix == ".gguf" else "; give the folder that holds config.json and the weights"
        )
        raise ModelError(f"model {model!r} is a file{advice}")
    if model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model or not model:
        raise ModelError(f"model {model!r}: there is no such folder")
    return _from_hub(model, revision, download_dir, weights)


def read_config(folder: Path) -> ModelConfig:
    """Configuration of the model in `folder`, from config.json and, for end tokens, generation_config.json.

    Raises `ModelError` for broken JSON, missing keys, impossible values and unknown architectures.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder}: config.json is not there, so this is not a model folder{advice_for_other_weights(folder)}"
        )
    file = ConfigFile.read(path)
    architectures = file.texts("architectures")
    if not architectures:
        raise file.wrong("architectures", "a list with the name of the model class")
    # Here, because models load JAX, which finding a folder (all that a server's own process does) has no need of.
    from jaxllm.models.families import registry

    config = registry.lookup(architectures[0]).read_config(file, architectures[0])
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
    from jaxllm.models.checkpoint.weights import checkpoint_files

    try:
        tensors = read_header(checkpoint_files(folder)[0])
    except ModelError:
        return "float32"  # No weights here, as with dummy ones; if they are needed, loading says what is wrong.
    largest = max(tensors, key=lambda tensor: tensor.end - tensor.start, default=None)
    return _DTYPES.get(largest.dtype, "float32") if largest else "float32"


def _from_hub(model: str, revision: str | None, download_dir: str | None, weights: bool) -> Path:
    # Imported here: it is slow, and a local folder does not need it.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = Path(
            snapshot_download(
                model,
                revision=revision,
                cache_dir=download_dir,
                allow_patterns=SMALL_FILES + (WEIGHT_FILES if weights else []),
                ignore_patterns=OTHER_FORMATS,
            )
        )
        if weights and not any(folder.glob("*.safetensors")):
            _check_listing(model, revision)
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
    raise ModelError(f"model {model!r}{where}: there is no such local folder, and {reason}")


def _check_listing(model: str, revision: str | None) -> None:
    """Raise `ModelError` for a model on the hub whose weights are in other formats, which are not downloaded."""
    from huggingface_hub import list_repo_files

    try:
        files = list_repo_files(model, revision=revision)
    except Exception:  # noqa: BLE001 - without the hub, loading says that there are no weights
        return
    if not any(name.endswith(".safetensors") and "/" not in name for name in files):
        advice = advice_for_names(name for name in files if "/" not in name)
        if advice:
            raise ModelError(f"model {model!r}: its weights on the hub are not safetensors{advice}")
