"""Runs vLLM's example programs with `vllm` replaced by `jaxllm` and every model by `demo`, and nothing else.

    python -m scripts.vllm_examples FOLDER [--only TEXT] [--seconds 240]

FOLDER is an unpacked source distribution of vLLM. Prints a line for each example: `ran`, or the first reason why not.
Programs that do not import vLLM are clients of a server, and are left out, as are those that are one.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HUB_ID = re.compile(r"[A-Za-z0-9][\w-]*/[A-Za-z0-9][\w.-]*")
NOT_MODELS = re.compile(
    r"(application|text|image|audio|video|runs|results|v1|datasets?)/.*|.*\.(py|json|jinja|txt|png|jpg)"
)


class Replacer(ast.NodeTransformer):
    """Replaces the name of the package, and hub ids of models."""

    def __init__(self) -> None:
        self.imports_vllm = False

    def visit_Import(self, node: ast.Import) -> ast.Import:
        """`import vllm.x`."""
        for name in node.names:
            name.name = self._ours(name.name)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        """`from vllm.x import y`."""
        if node.level == 0 and node.module is not None:
            node.module = self._ours(node.module)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """`vllm.x`."""
        node.id = "jaxllm" if node.id == "vllm" else node.id
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        """`"organisation/model"`."""
        if isinstance(node.value, str) and HUB_ID.fullmatch(node.value) and not NOT_MODELS.fullmatch(node.value):
            node.value = "demo"
        return node

    def _ours(self, module: str) -> str:
        first, dot, rest = module.partition(".")
        if first != "vllm":
            return module
        self.imports_vllm = True
        return f"jaxllm{dot}{rest}"


class Result(NamedTuple):
    """The outcome of one example."""

    path: str
    verdict: str

    def __str__(self) -> str:
        return f"{self.path}: {self.verdict}"


def translated(source: str) -> str | None:
    """The program with the names replaced; None for one that does not import vLLM."""
    replacer = Replacer()
    tree = ast.fix_missing_locations(replacer.visit(ast.parse(source)))
    return ast.unparse(tree) if replacer.imports_vllm else None


def run_all(folder: Path, only: str, seconds: float) -> Iterator[Result]:
    """Run the examples below `folder` whose path has the text `only`."""
    with tempfile.TemporaryDirectory() as work:
        copy = shutil.copytree(folder, Path(work) / "examples")
        for path in sorted(copy.rglob("*.py")):
            name = path.relative_to(copy).as_posix()
            program = translated(path.read_text(encoding="utf-8"))
            if program is None or only not in name:
                continue
            path.write_text(program, encoding="utf-8")
            yield Result(name, verdict(path, seconds))


def verdict(path: Path, seconds: float) -> str:
    """`ran`, or the first reason why not: the last line of the error."""
    command: list[Any] = [sys.executable, path.name]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    # A session of its own, so that whatever the program starts ends with it.
    with subprocess.Popen(
        command, cwd=path.parent, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return f"still ran after {seconds:g} s"
    if process.returncode == 0:
        return "ran"
    errors = [line for line in output.splitlines() if re.match(r"([\w.]+(Error|Exception|Exit|Warning)\b|\S+: )", line)]
    return (errors or output.splitlines() or [f"exit {process.returncode}"])[-1][:200]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="run only examples whose path contains this text")
    parser.add_argument("--seconds", type=float, default=240.0, help="time limit per example")
    args = parser.parse_args()
    examples = args.folder / "examples"
    if not examples.is_dir():
        parser.error(f"{examples} is not a folder")
    results = []
    for result in run_all(examples, args.only, args.seconds):
        print(result, flush=True)
        results.append(result)
    ran = sum(result.verdict == "ran" for result in results)
    print(f"{ran} of {len(results)} ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
