"""The order of the rooms: imports go down only; rooms say what they hold; nothing is too long."""

import ast

import rooms

TREE = rooms.tree_of()


def test_imports_go_down():
    assert {module.partition(".")[0] for module in TREE} == set(rooms.FOLDERS)
    assert set(map(rooms.room_of, TREE)) == set(rooms.FLOOR)  # a new folder has a floor
    assert rooms.wrong_imports(TREE) == []


def test_every_room_says_what_it_holds():
    folders = {module.rpartition(".")[0] for module in TREE} - {"", "eval", "data"}
    assert [
        folder for folder in sorted(folders) if not ast.get_docstring(ast.parse(TREE[folder]))
    ] == []


def test_the_picture_shows_the_rooms_as_they_are():
    text = (rooms.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert text == rooms.with_picture(text, TREE), "run .ci/draw_rooms"


def test_nothing_asks_for_code_or_a_pickle():
    """ruff's rules ban the rest; tests/test_hostile_files.py has folders with code and pickles."""
    unsafe = (
        "weights_only=False",
        "allow_pickle=True",
        "trust_remote_code=True",
        "register_for_checkpointing",
    )
    assert [(module, words) for module in TREE for words in unsafe if words in TREE[module]] == []


def test_a_wrong_import_is_found():
    for module, source in (
        ("dystress_text.losses.objectives", "import scipy"),
        ("dystress_text.io.hub", "if TYPE_CHECKING:\n    import dystress_text.training.trainer"),
        ("dystress_text.training.trainer", "make = 'dystress_text.evaluation.transfer:evaluator'"),
        (
            "vision.train",
            "def f():\n    from dystress_text.models.embedder import Embedder",
        ),
    ):
        tree = dict.fromkeys(TREE, "") | {"dystress_text.evaluation.transfer": "", module: source}
        (wrong,) = rooms.wrong_imports(tree)
        assert wrong.startswith(f"{module} imports ")
