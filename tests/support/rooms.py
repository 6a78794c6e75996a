"""Who imports whom: the rooms of the two packages, read from the sources without running them.

A tree is a mapping from a module's name to its source, so that a test can check one that is wrong.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dystress_text", "vision", "eval", "data")

# from the ground up; rooms of one floor do not import each other
TEXT_FLOORS = (
    ("errors", "core"), ("cli",), ("files",), ("training",), ("encoders",), ("evaluation",), ("simcse",),
    ("preparation", "export", "search", "report", "adaptation"), ("programs",),
)  # fmt: skip
VISION_FLOORS = (("vision.resnet",), ("vision.data",), ("vision.evaluation",), ("vision.pretraining",), ("vision",))
FOR_VISION = {"errors", "core", "cli", "files", "training"}
DRAWN_FOR_VISION = {f"dystress_text.report.{name}" for name in ("page", "page_drawings", "drawings", "plots")}
FOR_CORE = {"torch", "numpy"} | sys.stdlib_module_names
COMPUTED = "a computed name"  # given to import_module
LONGEST_MODULE, LONGEST_FUNCTION = 400, 60

_FLOOR = {
    room: floor for floors in (TEXT_FLOORS, VISION_FLOORS) for floor, rooms in enumerate(floors) for room in rooms
}
_HIDDEN = re.compile(rf"((?:{'|'.join(FOLDERS)})(?:\.\w+)+):\w+")  # "package.module:name"
_REASON = re.compile(r"# long: \w")


@dataclass(frozen=True)
class Import:
    """One module that another one names."""

    module: str
    line: int
    imported: str  # a module of the tree where there is one of that name, else as it stands

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}, imports {self.imported}"


def tree_of(root: Path = ROOT) -> dict[str, str]:
    """All modules of the packages and programs of a checkout; a package has its ``__init__`` under its own name."""
    found = {}
    for file in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        name = ".".join(file.relative_to(root).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = file.read_text(encoding="utf-8")
    return found


def imports_of(module: str, tree: Mapping[str, str]) -> list[Import]:
    """All imports of a module: those inside functions, those for the type checker, and those that a string names."""
    return list(dict.fromkeys(_imports(module, tree)))


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _imports(module: str, tree: Mapping[str, str]) -> Iterator[Import]:
    code = _parsed(tree[module])
    silent = {id(text) for text in _docstrings(code)} | {id(name) for name in _started(code)}
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, module, tree)
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                version = submodule == "dystress_text.__version__"  # which every room may read
                if not version:
                    yield Import(module, node.lineno, submodule if submodule in tree else source)
        elif isinstance(node, ast.Call) and _name_of(node.func) in ("import_module", "__import__"):
            given = node.args[0] if node.args else None
            constant = isinstance(given, ast.Constant) and isinstance(given.value, str)
            yield Import(module, node.lineno, given.value if constant else COMPUTED)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            hidden = _HIDDEN.fullmatch(node.value)
            if hidden or ("." in node.value and node.value in tree):
                yield Import(module, node.lineno, hidden[1] if hidden else node.value)


def _absolute(node: ast.ImportFrom, module: str, tree: Mapping[str, str]) -> str:
    if not node.level:
        return node.module or ""
    package = any(name.startswith(f"{module}.") for name in tree)
    parts = module.split(".")
    above = parts[: len(parts) - node.level + package]
    return ".".join([*above, *([node.module] if node.module else [])])


def _name_of(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _docstrings(code: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(code):
        if isinstance(node, ast.Expr):
            yield node.value


def _started(code: ast.Module) -> Iterator[ast.expr]:
    """Modules that a command starts: ``[python, "-m", "package.module"]``."""
    for node in ast.walk(code):
        if isinstance(node, ast.List | ast.Tuple):
            for flag, name in zip(node.elts, node.elts[1:], strict=False):
                if isinstance(flag, ast.Constant) and flag.value == "-m":
                    yield name


def loaded(tree: Mapping[str, str], *modules: str) -> set[str]:
    """What importing some modules loads: modules of the tree, and packages beside it by their first name.

    What stands inside functions is imported when they are called, what is for the type checker never.
    """
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module.partition(".")[0] not in FOLDERS:
            found.add(module.partition(".")[0])
        elif module not in found:
            parts = module.split(".")
            waiting += [".".join(parts[:i]) for i in range(1, len(parts)) if ".".join(parts[:i]) in tree]
            if module in tree:
                found.add(module)
                at_once = set(_lines_run(_parsed(tree[module])))
                waiting += [each.imported for each in _imports(module, tree) if each.line in at_once]
    return found


def _lines_run(node: ast.AST) -> Iterator[int]:
    """The lines of imports that run when a module is imported."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node.lineno
    typing = isinstance(node, ast.If) and _name_of(node.test) == "TYPE_CHECKING"
    if not typing and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _lines_run(child)


# ---- the order of the rooms -----------------------------------------------------------------------------------------


def room_of(module: str) -> str:
    """The room of a module of the tree; ``programs`` and ``vision`` are what stands on top."""
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    if package == "vision":
        return f"vision.{room}" if f"vision.{room}" in _FLOOR and not module.endswith(".__main__") else "vision"
    if package != "dystress_text" or module.endswith(".__main__"):
        return "programs"
    return room if room in _FLOOR else "programs"


def wrong_imports(tree: Mapping[str, str]) -> list[str]:
    """Every import that does not go down, a line each."""
    found = []
    for module in tree:
        for each in imports_of(module, tree):
            why = _why_not(each)
            if why:
                found.append(f"{each}: {why}")
    return found


def _why_not(each: Import) -> str | None:
    here, package = room_of(each.module), each.imported.partition(".")[0]
    if each.imported == COMPUTED:
        return "nobody can read from the source what this is"
    if package not in FOLDERS:
        needless = here == "core" and package not in FOR_CORE
        return "core needs torch, numpy and the standard library alone" if needless else None
    there = room_of(each.imported)
    of_vision, from_vision = (room.startswith("vision") for room in (there, here))
    if here == there or (of_vision == from_vision and _FLOOR[there] < _FLOOR[here]):
        return None
    if of_vision == from_vision:
        return f"{there} is not below {here}"
    if from_vision:
        return None if there in FOR_VISION or each.imported in DRAWN_FOR_VISION else f"vision does not use {there}"
    return "dystress_text does without vision"


def circles(tree: Mapping[str, str]) -> list[str]:
    """Modules that import each other, round and round; each circle once."""
    arrows = {module: {each.imported for each in imports_of(module, tree)} & tree.keys() for module in tree}
    found, done = [], set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            found.append(" - ".join([*path[path.index(module) :], module]))
        elif module not in done:
            for other in sorted(arrows[module] - {module}):
                walk(other, (*path, module))
            done.add(module)

    for module in tree:
        walk(module, ())
    return found


def without_docstring(tree: Mapping[str, str]) -> list[str]:
    """Rooms that do not say what lives in them."""
    rooms = {room if room.startswith("vision") else f"dystress_text.{room}" for room in map(room_of, tree)}
    rooms -= {"dystress_text.programs", "dystress_text.errors", "vision.resnet"}
    return sorted(room for room in rooms if not ast.get_docstring(_parsed(tree.get(room, ""))))


def too_long(tree: Mapping[str, str]) -> list[str]:
    """Modules and functions beyond their limit and without a comment ``# long: <reason>`` at their head."""
    found = []
    for module, source in tree.items():
        lines, code = source.splitlines(), _parsed(source)
        first = next((node.lineno for node in code.body if not isinstance(node, ast.Expr)), len(lines) + 1)
        if len(lines) > LONGEST_MODULE and not any(map(_REASON.match, lines[: first - 1])):
            found.append(f"{module}: {len(lines)} lines")
        for node in ast.walk(code):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                head = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if length > LONGEST_FUNCTION and not any(map(_REASON.search, lines[max(head - 2, 0) : node.lineno])):
                    found.append(f"{module}.{node.name}: {length} lines")
    return found


# ---- the picture ----------------------------------------------------------------------------------------------------


def picture(tree: Mapping[str, str]) -> str:
    """The rooms and who imports whom, for Mermaid: a line a room, without arrows that follow from the others."""
    arrows: dict[str, set[str]] = {}
    for module in tree:
        here = room_of(module)
        for each in imports_of(module, tree):
            there = room_of(each.imported)
            if each.imported.partition(".")[0] in FOLDERS and there != here:
                arrows.setdefault(here, set()).add(there)
    rooms = [room for floors in (TEXT_FLOORS, VISION_FLOORS) for floor in floors for room in floor]
    lines = ["```mermaid", "flowchart TD"]
    for room in reversed(rooms):
        direct = [other for other in rooms if other in arrows.get(room, set()) - _indirect(room, arrows)]
        if direct:
            lines.append(f"    {_shown(room)} --> {' & '.join(map(_shown, direct))}")
    return "\n".join([*lines, "```"])


def _indirect(room: str, arrows: Mapping[str, set[str]]) -> set[str]:
    """Rooms that a room reaches through another one that it imports."""
    found: set[str] = set()
    waiting = [further for other in arrows.get(room, ()) for further in arrows.get(other, ())]
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting += arrows.get(other, ())
    return found


def _shown(room: str) -> str:
    names = {"programs": "programs", "vision": "vision_programs[programs of vision]"}
    return names.get(room, f"{room.replace('.', '_')}[{room}]" if "." in room else room)


BEGIN, END = "<!-- rooms: drawn by .ci/draw_rooms -->", "<!-- end of rooms -->"


def with_picture(text: str, tree: Mapping[str, str]) -> str:
    """A document with the picture of a tree between its two markers.

    Raises:
        ValueError: the document lacks a marker.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks a marker: {BEGIN} or {END}")
    return f"{before}{BEGIN}\n{picture(tree)}\n{END}{after}"
