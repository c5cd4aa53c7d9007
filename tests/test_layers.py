"""The layer contracts of pyproject.toml notice imports in the wrong direction."""

import ast
import graphlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Module to plant, the line in it, and what import-linter must say is not allowed.
WRONG = [
    ("pallas_kernels/planted.py", "import jaxllm.models.planted_target", "jaxllm.pallas_kernels.planted"),
    ("pallas_kernels/planted_2.py", "from jaxllm.errors import ConfigError", "jaxllm.pallas_kernels.planted_2"),
    ("models/planted.py", "from jaxllm.errors import ConfigError", "jaxllm.models.planted"),
    ("models/planted_2.py", "def f():\n    from jaxllm.serving.cli import main", "jaxllm.models.planted_2"),
    ("models/planted_3.py", "from jaxllm import ConfigError", "jaxllm.models.planted_3"),
    ("jaxllm/planted.py", "from jaxllm.serving.cli import main", "jaxllm.planted"),
    ("jaxllm/scheduler/planted.py", "import jax.numpy", "jaxllm.scheduler.planted"),
    ("serving/cli/planted.py", "import torch", "jaxllm.serving.cli.planted"),
    ("serving/options/planted.py", "import jaxllm.serving.http.planted_target", "jaxllm.serving.options.planted"),
    ("serving/http/planted.py", "from jaxllm.serving.openai import stores", "jaxllm.serving.http.planted"),
    ("serving/http/planted_target.py", "from jaxllm import LLM", "jaxllm.serving.http.planted_target"),
]
RIGHT = [
    ("models/planted_target.py", "from jaxllm.pallas_kernels.linear import planted_target"),
    ("pallas_kernels/linear/planted_target.py", "import jax"),
    ("jaxllm/planted_good.py", "import jaxllm.models.planted_target, jaxllm.errors, jax"),
    ("serving/http/planted_good.py", "import jaxllm.planted_good, jaxllm.models.planted_target, jaxllm.serving.text"),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with its symlinks."""
    root = tmp_path_factory.mktemp("tree")
    for folder in ("jaxllm", "models", "pallas_kernels", "serving"):
        shutil.copytree(ROOT / folder, root / folder, symlinks=True, ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)


def test_the_source_keeps_its_layers_and_right_imports_pass(tree: Path) -> None:
    for file, line in RIGHT:
        (tree / file).write_text(line + "\n", encoding="utf-8")
    result = lint(tree)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_wrong_import_is_caught(tree: Path) -> None:
    for file, line, _ in WRONG:
        (tree / file).write_text(line + "\n", encoding="utf-8")
    result = lint(tree)
    for file, _, _ in WRONG:
        (tree / file).unlink()
    assert result.returncode == 1
    for _, line, module in WRONG:
        assert f"{module} -> " in result.stdout, f"{line} in {module} went unnoticed\n{result.stdout}"


def test_a_new_folder_of_serving_needs_a_place_in_the_chain(tree: Path) -> None:
    folder = tree / "serving" / "planted_folder"
    folder.mkdir()
    (folder / "__init__.py").touch()
    result = lint(tree)
    shutil.rmtree(folder)
    assert result.returncode == 1
    assert "planted_folder" in result.stdout


def modules() -> dict[str, Path]:
    """All modules of the source, by their names."""
    found = {}
    for folder in ("jaxllm", "models", "pallas_kernels", "serving"):
        for path in (ROOT / folder).rglob("*.py"):
            if not any(each.is_symlink() for each in path.parents):
                parts = path.relative_to(ROOT).with_suffix("").parts
                parts = parts if folder == "jaxllm" else ("jaxllm", *parts)
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Modules that one imports, those for type checkers left out."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    wanted = [node for node in body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))]
    found: set[str] = set()
    for node in (each for part in wanted for each in ast.walk(part)):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{each.name}" for each in node.names}
            found |= (inner & known.keys()) or {node.module}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return (found & known.keys()) - {name}


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    graph = {name: imported(name, path, known) for name, path in known.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names them


MOST_LATE_IMPORTS = {"jaxllm": 82, "models": 32, "pallas_kernels": 23, "serving": 117}
"""Imports inside functions, which hide circles: each has a reason, most often that a start is faster. Only lower."""


def late_imports(folder: str) -> int:
    """Imports inside functions of a source folder's modules."""
    found = 0
    for path in (ROOT / folder).rglob("*.py"):
        if any(each.is_symlink() for each in path.parents):
            continue
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found += sum(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(function))
    return found


@pytest.mark.parametrize("folder", MOST_LATE_IMPORTS)
def test_imports_inside_functions_do_not_grow_in_number(folder: str) -> None:
    assert late_imports(folder) <= MOST_LATE_IMPORTS[folder]
