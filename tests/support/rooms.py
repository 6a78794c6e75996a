"""Who imports whom: the rooms of the two packages, read from the sources without running them.

A tree is a mapping from a module's name to its source, so that a test can check one that is wrong.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dystress_text", "vision", "eval", "data")

# from the ground up; rooms of one floor do not import each other
TEXT_FLOORS = (
    ("errors",), ("losses", "cli"), ("io",), ("training",), ("models",), ("evaluation",), ("config",), ("data",),
    ("finetuning",), ("datasets", "export", "analysis"), ("programs",),
)  # fmt: skip
VISION_FLOORS = (
    ("vision.resnet",),
    ("vision.data",),
    ("vision.evaluation",),
    ("vision.pretraining",),
    ("vision",),
)
FLOOR = {
    room: i
    for floors in (TEXT_FLOORS, VISION_FLOORS)
    for i, rooms in enumerate(floors)
    for room in rooms
}
NOT_FOR_VISION = {
    "models",
    "evaluation",
    "config",
    "data",
    "finetuning",
    "export",
    "programs",
}
FOR_CORE = {"torch"} | sys.stdlib_module_names


def tree_of(root: Path = ROOT) -> dict[str, str]:
    """All modules of the packages and programs of a checkout; a package has its ``__init__`` under
    its own name.
    """
    found = {}
    for file in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        name = ".".join(file.relative_to(root).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = file.read_text(encoding="utf-8")
    return found


def room_of(module: str) -> str:
    """The room of a module; ``programs`` and ``vision`` are what stands on top."""
    package, _, rest = module.removesuffix(".__main__").partition(".")
    room = rest.partition(".")[0]
    if package == "vision":
        return f"vision.{room}" if f"vision.{room}" in FLOOR else "vision"
    return room if package == "dystress_text" and room in FLOOR else "programs"


parse = cache(ast.parse)


def imports_of(module: str, tree: Mapping[str, str]) -> list[str]:
    """What a module imports: modules of the tree, and other packages as they stand.

    Those inside functions and for the type checker are among them, and strings that are a module's
    name, but for what is started with ``-m``.
    """
    return list(dict.fromkeys(_imports(parse(tree[module]), module, tree)))


def _imports(node: ast.AST, module: str, tree: Mapping[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, f"{module} has a relative import"
        whole = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (
            name if name in tree else str(node.module)
            for name in whole
            if not name.endswith(".__version__")
        )
    elif isinstance(node, ast.Constant) and "." in str(node.value):
        name = str(node.value).partition(":")[0]
        if name in tree:
            yield name
    if not (
        isinstance(node, ast.List) and any(getattr(each, "value", "") == "-m" for each in node.elts)
    ):
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, module, tree)


def wrong_imports(tree: Mapping[str, str]) -> list[str]:
    """Every import that does not go down, a line each."""
    pairs = ((module, imported) for module in tree for imported in imports_of(module, tree))
    return [
        f"{module} imports {imported}"
        for module, imported in pairs
        if not _allowed(module, imported)
    ]


def _allowed(module: str, imported: str) -> bool:
    here, package = room_of(module), imported.partition(".")[0]
    if package not in FOLDERS:
        return here != "losses" or package in FOR_CORE
    there = room_of(imported)
    of_vision, from_vision = there.startswith("vision"), here.startswith("vision")
    if here == there or here == "programs":
        return not of_vision or from_vision
    if of_vision == from_vision:
        return FLOOR[there] < FLOOR[here]
    return from_vision and there not in NOT_FOR_VISION


BEGIN, END = "<!-- rooms: drawn by .ci/draw_rooms -->", "<!-- end of rooms -->"


def picture(tree: Mapping[str, str]) -> str:
    """The rooms and who imports whom, for Mermaid: a line a room, without arrows that follow from
    the others.
    """
    arrows: dict[str, set[str]] = {room: set() for room in FLOOR}
    for module in tree:
        near = [name for name in imports_of(module, tree) if name.partition(".")[0] in FOLDERS]
        arrows[room_of(module)] |= {room_of(name) for name in near} - {room_of(module)}
    reached = {room: set(direct) for room, direct in arrows.items()}
    for _ in FLOOR:
        reached = {
            room: found.union(*(reached[other] for other in found))
            for room, found in reached.items()
        }
    lines = ["```mermaid", "flowchart TD"]
    for room in reversed(list(FLOOR)):
        direct = [
            other
            for other in arrows[room]
            if not any(other in reached[each] for each in arrows[room])
        ]
        if direct:
            lines.append(
                f"    {_shown(room)} --> {' & '.join(map(_shown, sorted(direct, key=list(FLOOR).index)))}"
            )
    return "\n".join([*lines, "```"])


def _shown(room: str) -> str:
    if room == "vision":
        return "vision_programs[programs of vision]"
    return f"{room.replace('.', '_')}[{room}]" if "." in room else room


def with_picture(text: str, tree: Mapping[str, str]) -> str:
    """A document with the picture of a tree between its two markers."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    assert after, f"the document lacks a marker: {BEGIN} or {END}"
    return f"{before}{BEGIN}\n{picture(tree)}\n{END}{after}"
