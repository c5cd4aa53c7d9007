"""What vLLM's examples import, with `vllm` replaced by `jaxllm`."""

import ast
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path

from scripts.vllm_surface.reasons import reason_for
from scripts.vllm_surface.source import Source
from scripts.vllm_surface.tables import Row, Table


def imports(source: Source) -> Table:
    """One row for each name that any example imports."""
    found = sorted({name for path in _examples(source) for name in _imported(source.tree(path))})
    return Table(
        "names that examples import",
        tuple(Row(name, "present") if _is_there(name) else Row(name, "absent", reason_for(name)) for name in found),
    )


def examples(source: Source) -> Table:
    """One row for each example that imports anything of vLLM."""
    rows = []
    for path in _examples(source):
        missing = [name for name in _imported(source.tree(path)) if not _is_there(name)]
        if any(_imported(source.tree(path))):
            name = str(path.relative_to(source.folder / "examples"))
            rows.append(Row(name, "absent", f"imports {missing[0]}") if missing else Row(name, "present"))
    return Table("examples whose imports resolve", tuple(rows))


def _examples(source: Source) -> list[Path]:
    return sorted((source.folder / "examples").rglob("*.py"))


def _imported(tree: ast.Module) -> list[str]:
    """`vllm.module:name` for every name that is imported from vLLM, `vllm.module:` for a module."""
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm" and not node.level:
            names |= {f"{node.module}:{alias.name}": None for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {f"{alias.name}:": None for alias in node.names if alias.name.partition(".")[0] == "vllm"}
    return list(names)


@cache
def _is_there(name: str) -> bool:
    module, _, attribute = name.partition(":")
    module = "jaxllm" + module.removeprefix("vllm")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not attribute or hasattr(import_module(module), attribute):
                import_module(module)
                return True
            import_module(f"{module}.{attribute}")
    except ImportError:
        return False
    return True
