"""What a vLLM source distribution declares, read from its syntax trees: nothing of it is imported or run."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Field:
    """A field of a class: its annotation and its default as they are written."""

    name: str
    annotation: str
    default: str


@dataclass(frozen=True)
class Class:
    """A class: its fields and its public methods, without those of its bases."""

    name: str
    bases: tuple[str, ...]
    fields: tuple[Field, ...]
    methods: tuple[str, ...]
    file: str


@dataclass(frozen=True)
class Source:
    """The Python files of a distribution in `folder`."""

    folder: Path
    _trees: dict[Path, ast.Module] = field(default_factory=dict)

    def tree(self, path: Path) -> ast.Module:
        """The syntax tree of a file."""
        if path not in self._trees:
            self._trees[path] = ast.parse(path.read_text(encoding="utf-8"))
        return self._trees[path]

    def files(self, under: str) -> Iterator[Path]:
        """Files of a folder of the package, such as `config`."""
        found = self.folder / "vllm" / under
        yield from sorted(found.rglob("*.py")) if found.is_dir() else [found]

    @cached_property
    def configs(self) -> dict[str, Class]:
        """Classes of options by name."""
        places = ("config", "engine/arg_utils.py", "entrypoints/common/cli_args.py")
        return {each.name: each for place in places for each in self.classes(place)}

    def classes(self, under: str) -> Iterator[Class]:
        """Yield the classes of a file or folder."""
        for path in self.files(under):
            for node in ast.walk(self.tree(path)):
                if isinstance(node, ast.ClassDef):
                    yield _class(node, str(path.relative_to(self.folder / "vllm")))

    def named(self, name: str, under: str) -> Class | None:
        """The class of this name in a file or folder."""
        return next((each for each in self.classes(under) if each.name == name), None)

    def fields(self, name: str, classes: dict[str, Class]) -> dict[str, Field]:
        """Fields of a class and of its bases among `classes`, by name."""
        found: dict[str, Field] = {}
        if name in classes:
            for base in classes[name].bases:
                found |= self.fields(base, classes)
            found |= {each.name: each for each in classes[name].fields}
        return found


def _class(node: ast.ClassDef, file: str) -> Class:
    fields = [
        Field(item.target.id, ast.unparse(item.annotation), "" if item.value is None else ast.unparse(item.value))
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and "ClassVar" not in ast.unparse(item.annotation)
    ]
    methods = [
        item.name
        for item in node.body
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and not item.name.startswith("_")
    ]
    bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
    return Class(node.name, bases, tuple(fields), tuple(dict.fromkeys(methods)), file)
