"""Finding the folder of a model, without JAX: the process of a server does nothing else with a model."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jaxllm.models.checkpoint.hub import download_model
from jaxllm.models.checkpoint.joined_parts import has_parts, joined_folder
from jaxllm.models.checkpoint.other_formats import is_gguf
from jaxllm.models.checkpoint.weight_files import gguf_files
from jaxllm.models.errors import ModelError, nearest

DEMO = "demo"

SHIPPED = {
    DEMO: "demo",
    "demo-eagle3": "demo_eagle3",
    "demo-sound": "demo_sound",
    "demo-vision": "demo_vision",
}
"""Models that come with jaxllm, and their folders: a small Llama, an EAGLE-3 head that guesses for it, a Whisper that
hears numbers, and an Idefics 3 that was made of the Llama and describes pictures of shapes."""


def find_model(
    model: str,
    revision: str | None = None,
    download_dir: str | None = None,
    token: str | None = None,
    *,
    weights: bool = True,
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """The local folder of a model: one of `SHIPPED`, a folder, a hub id that is downloaded or found in the hub's cache,
    or a GGUF file, which gets a folder in the user's cache. So does a model whose parts are in other repositories,
    which are found likewise; `overrides` of its config.json may name others.

    Without `weights` only configuration and tokenizer are fetched. `HF_HUB_OFFLINE=1` keeps it from the network. The
    hub's `token` is by default that of its own client.
    Raises `ModelError` saying what was tried.
    """
    folder = _find(model, revision, download_dir, token, weights=weights)
    if not has_parts(folder):
        return folder
    find = partial(_find, revision=None, download_dir=download_dir, token=token, weights=weights)
    return joined_folder(folder, overrides, find, weights=weights)


def _find(model: str, revision: str | None, download_dir: str | None, token: str | None, *, weights: bool) -> Path:
    """See `find_model`, of a model that is in one place."""
    if model in SHIPPED:
        return Path(__file__).parent.parent / SHIPPED[model]
    shown = model[:200]
    try:
        folder = Path(model).expanduser()
        is_folder, is_there = folder.is_dir(), folder.exists()
    # A name that is too long, or another user's home that is not there.
    except (OSError, RuntimeError):
        raise ModelError(f"model {shown!r}: no such local folder, and no such model on the Hub") from None
    if model and is_folder:
        return _with_config(folder)
    if model and is_there:
        if is_gguf(folder):
            return _folder_of_gguf(folder)
        raise ModelError(f"model {shown!r} is a file; give the folder that contains config.json and the weights")
    if model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model or not model:
        raise ModelError(f"model {shown!r}: no such folder")
    try:
        return download_model(model, revision, download_dir, token, weights)
    except ModelError as error:
        raise ModelError(f"{error}{nearest(model, SHIPPED) if '/' not in model else ''}") from None


def _with_config(folder: Path) -> Path:
    """The folder, or what stands for the one GGUF file in it."""
    if (folder / "config.json").exists() or not any(map(is_gguf, folder.glob("*"))):
        return folder
    return _folder_of_gguf(gguf_files(folder)[0])


def _folder_of_gguf(file: Path) -> Path:
    """The folder that stands for a GGUF file."""
    # Other models need nothing of it, and it is slow.
    from jaxllm.models.quantization.gguf.folder import gguf_folder

    return gguf_folder(file)
