"""The options of the loss core, read from the sources of its classes: a command line need not wait for torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dystress_text.files.places import PACKAGE

Classes = Mapping[str, ast.ClassDef]  # by name
_KINDS: dict[str, type] = {"float": float, "int": int, "bool": bool, "str": str}
_SOURCES = ("objectives", "other_losses", "rules", "temperature", "run_temperatures")


@dataclass
class ConstructorOption:
    """A number or text that constructors take."""

    kind: type  # float, int, bool or str
    # what the docstring of each class that takes it says about it, by the name of the class's option
    described: dict[str, str] = field(default_factory=dict)

    @property
    def help(self) -> str:
        """The descriptions, each after the names of the classes that it is of."""
        names: dict[str, list[str]] = {}
        for name, text in self.described.items():
            names.setdefault(text, []).append(name)
        return " ".join(f"{', '.join(some)}: {text}" for text, some in names.items())


def core_classes() -> dict[str, ast.ClassDef]:
    """The classes of the loss core; a user's own may be imported later, and have no options of their own."""
    sources = [(PACKAGE / "core" / f"{name}.py").read_text(encoding="utf-8") for name in _SOURCES]
    return {node.name: node for source in sources for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def registered(classes: Classes) -> dict[str, str]:
    """The names of the classes of temperatures by the names under which they are registered."""
    return {
        ast.literal_eval(call.args[0]): name
        for name, node in classes.items()
        for call in node.decorator_list
        if isinstance(call, ast.Call) and _name(call.func) == "register_temperature"
    }


def lineage(name: str, classes: Classes) -> Iterator[ast.ClassDef]:
    """A class and those of its bases that are known, itself first."""
    while name in classes:
        yield classes[name]
        name = _name(classes[name].bases[0]) if classes[name].bases else ""


def parameters(name: str, classes: Classes) -> dict[str, ast.expr | None]:
    """The annotations of the parameters of a class's constructor, in order, without ``self``."""
    for node in lineage(name, classes):
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                return {each.arg: each.annotation for each in (*method.args.args[1:], *method.args.kwonlyargs)}
    return {}


def constructor_options(names: Mapping[str, str], classes: Classes) -> dict[str, ConstructorOption]:
    """The numbers and texts among the parameters of constructors; ``names`` are by what the options call them."""
    found: dict[str, ConstructorOption] = {}
    for called, name in names.items():
        described = _described(name, classes)
        for key, annotation in parameters(name, classes).items():
            kinds = [node.id for node in ast.walk(annotation or ast.Pass()) if isinstance(node, ast.Name)]
            if len(kinds) == 1 and kinds[0] in _KINDS:
                option = found.setdefault(key, ConstructorOption(_KINDS[kinds[0]]))
                option.described[called] = described.get(key, "")
    return found


def _described(name: str, classes: Classes) -> dict[str, str]:
    """What the ``Args`` of a class's docstring, or else of its bases', say about each argument."""
    found: dict[str, str] = {}
    for node in lineage(name, classes):
        _, _, args = (ast.get_docstring(node) or "").partition("Args:\n")
        section = re.split(r"\n\S", args)[0]
        for key, text in re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", section, flags=re.S | re.M):
            found.setdefault(key, " ".join(text.split()))
    return found


def _name(node: ast.expr) -> str:
    """The last part of a name such as ``core.ProfileTemperature``."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
