"""Python reads this at its start where the folder is on its path: it then finds no torch, and no IPython.

They are installed for tests and pages alone. Where torch is installed, transformers imports it, which takes longer than
all that a server does before it listens; flax imports IPython, a twentieth of an engine's imports. Where users run
servers, they are not. The kernel of a notebook finds IPython, of course.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HIDDEN = {"torch"} if "ipykernel_launcher" in sys.orig_argv else {"torch", "IPython"}


class WithoutTorch(PathFinder):
    """Finds what Python finds, but for these."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As `PathFinder` does."""
        return None if fullname in HIDDEN else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
