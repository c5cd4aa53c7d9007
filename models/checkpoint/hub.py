"""Downloading a model from the hub of Hugging Face, or finding it in the hub's cache."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jaxllm.models.checkpoint.other_formats import advice_for_names
from jaxllm.models.errors import ModelError

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


def hub_client() -> Any:
    """What is used of the Hub's client, under its names."""
    # Imported here: it is slow, and a local folder does not need it.
    from huggingface_hub import constants, errors, list_repo_files, snapshot_download

    return SimpleNamespace(
        constants=constants, errors=errors, list_repo_files=list_repo_files, snapshot_download=snapshot_download
    )


def download_model(
    model: str, revision: str | None, download_dir: str | None, token: str | None, weights: bool
) -> Path:
    """The folder in the hub's cache with the files of `model`; see `find_model`. Raises `ModelError`."""
    client = hub_client()
    download = partial(
        client.snapshot_download,
        model,
        revision=revision,
        cache_dir=download_dir,
        token=token,
        ignore_patterns=OTHER_FORMATS,
    )
    try:
        folder = Path(download(allow_patterns=SMALL_FILES + (WEIGHT_FILES if weights else [])))
        if weights and not any(folder.glob("*.safetensors")):
            folder = Path(download(allow_patterns=TORCH_FILES))
            if not any(folder.glob("pytorch_model*.bin")):
                _check_formats(model, partial(client.list_repo_files, model, revision=revision, token=token))
        return folder
    except ModelError:
        raise
    except client.errors.RevisionNotFoundError:
        reason = f"the Hub has it, but not revision {revision!r}"
    except Exception as error:  # noqa: BLE001 - the client's transport, and with it the type, changed with every version
        reason = download_problem(error)
    where = f" (revision {revision})" if revision else ""
    raise ModelError(f"model {model[:200]!r}{where}: no such local folder, and {reason}")


def download_problem(error: Exception) -> str:
    """What an error of the Hub's client means, for a message that names what was asked for."""
    client = hub_client()
    errors = client.errors
    match error:
        case errors.HFValidationError():
            return "it is not a valid Hub ID (name or organization/name)"
        case errors.GatedRepoError():
            return "access on the Hub is restricted: accept the terms there and set HF_TOKEN"
        case errors.RepositoryNotFoundError():
            return "the Hub has no such model (for a private one, set HF_TOKEN)"
        case errors.LocalEntryNotFoundError():
            offline = "HF_HUB_OFFLINE is set" if client.constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
            return f"it is not in the local Hub cache, and {offline}"
    return f"downloading it from the Hub failed: {type(error).__name__}: {(str(error) or '-').splitlines()[0]}"


def _check_formats(model: str, list_files: Callable[[], list[str]]) -> None:
    """Raise `ModelError` for a model on the hub whose weights are in other formats, which are not downloaded."""
    try:
        files = list_files()
    except Exception:  # noqa: BLE001 - without the hub, loading says that there are no weights
        return
    if not any(name.endswith(".safetensors") and "/" not in name for name in files):
        advice = advice_for_names(name for name in files if "/" not in name)
        if advice:
            raise ModelError(f"model {model!r}: its weights on the Hub are not safetensors{advice}")
