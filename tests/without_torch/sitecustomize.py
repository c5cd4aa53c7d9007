"""Python reads this at its start where the folder is on its path: it then finds no torch.

Torch is installed for tests alone. Where it is installed, transformers imports it, which takes longer than all that a
server does before it listens; where users run jaxllm, it is not.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class WithoutTorch(PathFinder):
    """Finds what Python finds, but for torch."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As `PathFinder` does."""
        return None if fullname == "torch" else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
