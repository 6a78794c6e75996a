"""The paper's figures beside ours: in the table and the file of an evaluation, on the page, and what a run changed."""

import json

import pytest
from encoder_cases import colour_images, tiny_encoder

from vision.data import loading
from vision.evaluate import main
from vision.evaluation.paper import row_of
from vision.resnet import save_encoder

CIFAR, GEOMETRY = (row_of(t, "DySTreSS") for t in ("cifar10n100_bal_bs128_sgd0p1_200eps", "unifalginmentmetrics"))


def model_of(folder, dataset, rows, differs=""):
    """An encoder whose run was of a preset with these rows."""
    save_encoder(tiny_encoder(), folder)
    settings = {"dataset": dataset, "data_dir": None}
    record = {"program": "vision/train.py", "settings": settings, "trained": {"knn200": 80.0},
              "paper": {"rows": rows, "differs": differs}}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def evaluated(tmp_path, monkeypatch, capsys):
    """Evaluates a model, and returns the file's content and what was printed."""
    images = {"train": colour_images(48, name="cifar10"), "test": colour_images(21, seed=1, name="cifar10")}
    monkeypatch.setattr(loading, "load_images", lambda name, split, *rest: images[split])

    def run(model, *flags):
        flags = [f"--model={model}", f"--output={tmp_path / 'r.json'}", *flags]
        assert main(flags) == 0
        return json.loads((tmp_path / "r.json").read_text()), capsys.readouterr().out

    return run


def test_the_papers_figures_stand_in_a_column_of_their_own(evaluated, tmp_path):
    model = model_of(tmp_path / "out", "cifar10", [CIFAR, GEOMETRY], "--max_steps 5 (row: -1)")
    content, printed = evaluated(model, "--tasks", "knn", "geometry", "--k=20")
    assert content["paper"] == {
        str(model): {
            "rows": {
                CIFAR: {"knn": {"200-NN": {"top1": 85.68}}},
                GEOMETRY: {
                    "geometry": {"uniformity": -2.843, "alignment": 1.631, "interclass_uniformity": -0.5797},
                    "knn": {"200-NN": {"top1": 85.83}},
                },
            },
            "differs": "--max_steps 5 (row: -1)",
        }
    }
    lines = printed.splitlines()
    heading = next(line for line in lines if CIFAR in line)
    assert heading.split("  ")[-1].strip() == GEOMETRY
    assert next(line for line in lines if line.startswith("200-NN top-1")).split()[-3:] == ["-", "85.68", "85.83"]
    uniform = next(line for line in lines if line.startswith("uniformity"))
    assert uniform.split()[-2:] == ["-", "-2.843"]
    assert f"{content['results'][str(model)]['geometry']['uniformity']:.3f}" in uniform
    assert f"{model} differs from the row in --max_steps 5 (row: -1)" in lines
    assert "the paper's alignment cannot be that of two views of an image (docs/reproduction.md)" in lines
