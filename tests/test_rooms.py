"""The order of the rooms: imports go down only, in no circle; rooms say what they hold; nothing is too long."""

import sys

import pytest
import rooms

TREE = rooms.tree_of()
EMPTY = dict.fromkeys(TREE, "")  # its modules, with nothing in them


def test_all_modules_are_read():
    assert {module.partition(".")[0] for module in TREE} == set(rooms.FOLDERS)
    assert len(TREE) > 80
    named = {room for floors in (rooms.TEXT_FLOORS, rooms.VISION_FLOORS) for floor in floors for room in floor}
    assert set(map(rooms.room_of, TREE)) == named
    folders = {module.rpartition(".")[0] for module in TREE} - {"", *rooms.FOLDERS}
    assert folders <= {f"dystress_text.{room}" for room in named} | named  # a new folder has a floor


def test_a_room_imports_only_rooms_below_it():
    assert rooms.wrong_imports(TREE) == []


def test_no_modules_import_each_other_in_a_circle():
    assert rooms.circles(TREE) == []


def test_every_room_says_what_it_holds():
    assert rooms.without_docstring(TREE) == []


def test_modules_and_functions_are_short():
    assert rooms.too_long(TREE) == []


def test_the_picture_shows_the_rooms_as_they_are():
    text = (rooms.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert text == rooms.with_picture(text, TREE), "run .ci/draw_rooms"
    assert len(rooms.picture(TREE).splitlines()) < 40  # one screen


# ---- what a program loads when it starts ---------------------------------------------------------------------------


EXTRAS = {"matplotlib", "jinja2", "onnx", "onnxscript", "onnxruntime", "usearch", "peft", "tensorboard"}
EXTRAS_OF_VISION = {"kornia", "PIL", "pytorch_optimizer"}
PROGRAMS = [module for module in TREE if rooms.room_of(module) == "programs" and not module.startswith("data.")]


def test_search_loads_no_trainer():
    assert "dystress_text.training.trainer" not in rooms.loaded(TREE, "dystress_text.search", "dystress_text.demo")


def test_vision_loads_nothing_of_text():
    programs = rooms.loaded(TREE, "vision.train", "vision.evaluate", "vision.export")
    of_rooms = {rooms.room_of(module) for module in (programs & TREE.keys()) - {"dystress_text"}}
    assert "training" in of_rooms
    assert of_rooms.isdisjoint({"encoders", "evaluation", "simcse", "preparation", "export", "search", "programs"})


def test_the_package_alone_is_light():
    assert rooms.loaded(TREE, "dystress_text") - TREE.keys() <= sys.stdlib_module_names


def test_programs_start_without_extras():
    assert len(PROGRAMS) > 10
    programs = rooms.loaded(TREE, *PROGRAMS, "vision.pretraining.presets")  # which dystress_text.presets starts
    assert programs.isdisjoint(EXTRAS | EXTRAS_OF_VISION)
    assert "torch" in rooms.loaded(TREE, "dystress_text.train")


def test_workers_that_clean_text_load_the_standard_library_alone():
    modules = rooms.loaded(TREE, "dystress_text.preparation.corpus_cleaner", "dystress_text.preparation.ordered_map")
    assert modules - TREE.keys() <= sys.stdlib_module_names


def test_what_is_loaded_is_what_runs_at_the_import():
    tree = {
        "vision": "import torch",
        "vision.data.a": "if True:\n    from vision.data.b import B\nclass A:\n    import numpy.random",
        "vision.data.b": "def f():\n    import scipy\nif TYPE_CHECKING:\n    import vision.data.c",
        "vision.data.c": "",
    }
    assert rooms.loaded(tree, "vision.data.a") == {"vision", "vision.data.a", "vision.data.b", "torch", "numpy"}


# ---- the test fails where it should ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dystress_text.core.rows", "from dystress_text.files.tables import read"),
        ("dystress_text.core.rows", "import scipy"),
        ("dystress_text.core.rows", "from dystress_text.errors import UserError"),
        ("dystress_text.cli.progress", "def f():\n    from dystress_text.files import whole"),
        ("dystress_text.files.hub", "if TYPE_CHECKING:\n    import dystress_text.training.trainer"),
        ("dystress_text.training.trainer", "from dystress_text import evaluation"),
        ("dystress_text.training.trainer", "from ..evaluation import online"),
        ("dystress_text.training.trainer", "make = 'dystress_text.evaluation.online:transfer_evaluator'"),
        ("dystress_text.training.trainer", "make = 'eval.online:transfer_evaluator'"),
        ("dystress_text.training.trainer", "make = 'dystress_text.evaluation.transfer'"),
        ("dystress_text.training.trainer", "importlib.import_module('dystress_text.evaluation')"),
        ("dystress_text.training.trainer", "importlib.import_module(name)"),
        ("dystress_text.training.trainer", "import dystress_text"),
        ("dystress_text.search.loading", "from dystress_text.report.tables import read"),
        ("dystress_text.search.loading", "from dystress_text.search.__main__ import main"),
        ("dystress_text.search", "from dystress_text.train import main"),
        ("dystress_text.train", "from vision.data import images"),
        ("vision.data.images", "from vision.evaluation import knn"),
        ("vision.data.images", "from vision.train import main"),
        ("vision.evaluation.knn", "from vision.pretraining.task import Task"),
        ("vision.pretraining.task", "from dystress_text.encoders.encoder import Encoder"),
        ("vision.train", "from dystress_text.report import sweep"),
        ("vision.train", "import dystress_text"),
        ("vision.resnet", "from vision.data import images"),
    ],
)
def test_a_wrong_import_is_found(module, source):
    (found,) = rooms.wrong_imports(EMPTY | {module: source})
    assert found.startswith(f"{module}, line ")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dystress_text.core.rows", "import math, torch\nfrom dystress_text.core.gather import Gather"),
        ("dystress_text.training.trainer", "import accelerate\nfrom dystress_text import __version__"),
        ("dystress_text.search.__main__", "from dystress_text.train import main"),
        ("dystress_text.train", "'''As dystress_text.search.'''\n'dystress_text.search'"),
        ("dystress_text.presets", "run([python, '-m', 'vision.pretraining.presets'])"),
        ("vision.train", "from dystress_text.report.page import write"),
        ("eval.senteval", "from dystress_text.senteval import main"),
    ],
)
def test_a_right_import_is_left_alone(module, source):
    assert rooms.wrong_imports(EMPTY | {module: source}) == []


def test_a_circle_is_found_once():
    tree = {
        "vision.data.a": "from vision.data import b",
        "vision.data.b": "def f():\n    import vision.data.c",
        "vision.data.c": "if TYPE_CHECKING:\n    from vision.data.a import A",
        "vision.data.d": "from vision.data.b import B",
    }
    assert rooms.circles(tree) == ["vision.data.a - vision.data.b - vision.data.c - vision.data.a"]


def test_a_room_without_a_docstring_is_found():
    assert rooms.without_docstring(TREE | {"vision.data": "", "dystress_text.cli": "x = 1"}) == [
        "dystress_text.cli",
        "vision.data",
    ]


def test_what_is_too_long_is_found_unless_it_says_why():
    function = "def f():\n" + "    x\n" * rooms.LONGEST_FUNCTION
    module = '"""Words."""\nimport os\n' + "x = 1\n" * (rooms.LONGEST_MODULE - 1)
    tree = {"a": function, "b": f"# long: one table\n{function}", "c": module, "d": f"# long: one table\n{module}"}
    assert rooms.too_long(tree) == ["a.f: 61 lines", "c: 401 lines"]


def test_the_picture_leaves_out_arrows_that_follow_from_others():
    tree = {
        "dystress_text.files.a": "",
        "dystress_text.training.a": "import dystress_text.files.a",
        "dystress_text.simcse.a": "import dystress_text.files.a, dystress_text.training.a, torch",
    }
    assert rooms.picture(tree).splitlines()[2:-1] == ["    simcse --> training", "    training --> files"]
