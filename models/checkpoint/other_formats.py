"""Weights that are not safetensors: what to tell somebody who has them."""

from collections.abc import Iterable
from pathlib import Path

OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
GGUF = ".gguf"
NO_GGUF = "download one GGUF file and give its local path"
STATE_FILE = "sharded_state.json"
"""Says of a folder that it has an engine's parameters as they lay on its devices."""
TOKENIZER_PROBLEM = "tokenizer_problem.txt"
"""Says, in a folder that stands for a GGUF file, why there is no tokenizer."""
NO_PICKLES = (
    "the only PyTorch files supported are pytorch_model.bin and those in its index; save the model as safetensors "
    "(with torch installed: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), and likewise "
    "the tokenizer)"
)


def is_gguf(name: str | Path) -> bool:
    """Whether a file is called as GGUF files are, in small letters or in capitals."""
    return str(name).lower().endswith(GGUF)


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have, as it is too long, is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def advice_for_other_weights(folder: Path) -> str:
    """Advice about the weights in `folder`, as the end of a message; empty if there are none."""
    return advice_for_names(file.name for file in folder.glob("*"))


def advice_for_names(files: Iterable[str]) -> str:
    """Likewise of the files with these names."""
    files = list(files)
    if STATE_FILE in files:
        return " (found a saved state): read it with load_format='sharded_state' (--load-format sharded_state)"
    names = sorted(name for name in files if name.lower().endswith(OTHER_WEIGHTS))
    if not names:
        return ""
    found = f" (found {', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
    if all(is_gguf(name) for name in names):
        return f"{found}: {NO_GGUF}"
    if all(name.lower().endswith((".safetensors", GGUF)) for name in names):
        return f"{found}: a single file must be named model.safetensors, and several files need their index"
    return f"{found}: {NO_PICKLES}"
