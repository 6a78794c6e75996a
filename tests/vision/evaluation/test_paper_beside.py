"""The paper's figures beside ours: in the table and the file of an evaluation, on the page, and what a run changed."""

import json

import pytest
from encoder_cases import colour_images, tiny_encoder
from vision_cases import write_folder

from dystress_text.training.build_loss import build_temperature
from dystress_text.training.presets import said_of
from vision import train
from vision.data import loading
from vision.evaluate import main
from vision.evaluation.paper import TABLES, figures_of, results_of, row_of
from vision.evaluation.table import page_tables
from vision.pretraining.loss_defaults import VISION
from vision.pretraining.run import paper_row
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


def test_only_what_is_measured_and_on_the_images_of_the_row(evaluated, tmp_path):
    model = model_of(tmp_path / "out", "data/CIFAR10/", [CIFAR, GEOMETRY])
    content, printed = evaluated(model, "--dataset=cifar10", "--tasks", "geometry")
    assert list(content["paper"][str(model)]["rows"]) == [GEOMETRY]
    assert "differs" not in printed
    content, printed = evaluated(model, "--dataset=cifar100", "--tasks", "knn", "--k=5")  # it never saw them
    assert "paper" not in content
    assert "56.57" not in printed


def test_fine_tuning_has_the_papers_figure_on_other_images(evaluated, tmp_path):
    row = row_of("transferlearning", "DCL")
    model = model_of(tmp_path / "out", "imagenet1k", [row_of("in1k_bal_bs256_lars_100eps", "DCL"), row])
    flags = ["--tasks", "knn", "transfer", "--k=5", "--transfer_epochs=1"]
    content, printed = evaluated(model, "--dataset=sets/Chaoyang", *flags)
    assert content["paper"][str(model)]["rows"] == {row: {"transfer": {"accuracy": {"top1": 83.12}}}}
    assert next(line for line in printed.splitlines() if line.startswith("fine-tuned top-1")).endswith("83.12")


def test_records_of_other_versions_have_no_figures(evaluated, tmp_path):
    for number, entry in enumerate((None, [], {"rows": ["Table gone, row DCL", "nothing"]})):
        model = model_of(tmp_path / str(number), "cifar10", [])
        record = json.loads((model / "run.json").read_text()) | {"paper": entry}
        (model / "run.json").write_text(json.dumps(record))
        assert "paper" not in evaluated(model, "--tasks", "knn", "--k=5")[0]


def test_every_row_is_as_wide_as_its_table():
    for label, table in TABLES.items():
        assert len(set(table.columns)) == len(table.columns), label
        for name, values in table.rows.items():
            assert len(values) == len(table.columns), (label, name)
            datasets = {dataset for dataset, _ in table.columns}
            shown = sum(len(figures_of(row_of(label, name), dataset)) for dataset in datasets)
            assert shown == sum(value is not None for value in values)
    with pytest.raises(KeyError):
        row_of("monotony", "DCL")
    assert results_of(row_of("in1k_bal_bs256_lars_100eps", "MACL"), "imagenet1k") == {
        "linear": {"top1": 64.3, "probe": "augmented"}
    }


def test_the_pages_table(tmp_path):
    record = json.loads((model_of(tmp_path / "out", "cifar10", [CIFAR]) / "run.json").read_text())
    assert page_tables(record) == [
        ("The paper's figures", [["", "this run, while training", CIFAR], ["200-NN top-1", "80.00", "85.68"]])
    ]
    assert page_tables(record | {"paper": {"rows": []}}) == []


SMALL = ["--architecture=resnet10_narrow", "--train_batch_size=8", "--max_steps=2", "--knn_k=5", "--mixed_precision=no",
         "--image_size=8"]  # fmt: skip


def test_a_run_says_in_what_it_differs_from_its_row(tmp_path):
    write_folder(tmp_path / "cifar10" / "train", {"a": range(0, 240, 20), "b": range(5, 240, 20)})
    write_folder(tmp_path / "cifar10" / "test", {"a": (10, 30, 50), "b": (15, 35, 55)})
    flags = ["--preset=cifar10-macl", f"--dataset={tmp_path / 'cifar10'}", f"--output_dir={tmp_path / 'out'}", *SMALL]
    assert train.main([*flags, "--tau_0=0.2"]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["paper"]["rows"] == [CIFAR.replace("DySTreSS", "MACL (repro.)")]
    said = said_of(record)
    for change in ("--architecture resnet10_narrow (row: resnet18)", "--train_batch_size 8 (row: 128)",
                   "--max_steps 2 (row: -1)", "(row: AlignmentAdaptiveTemperature(tau_0=0.1, alpha=0.5, a_0=0.0))",
                   "--image_size 8 (row: 32)"):  # fmt: skip
        assert change in said
    for same in ("--seed", "--output_dir", "--knn_k", "--eval_steps", "--tau_0", "--learning_rate", "--rows"):
        assert same not in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert "differs from the row in " in page
    assert "84.85" in page


@pytest.mark.parametrize(
    ("flags", "differs"),
    [([], ""),
     (["--seed=7", "--save_steps=10", "--eval_steps=0", "--knn_k=0", "--per_device_train_batch_size=128"], ""),
     (["--temperature=cosine", "--tau_max=0.2"], ""),
     (["--per_device_train_batch_size=64"], "--train_batch_size 64 (row: 128)"),
     (["--temp=0.2"], "--temperature ConstantTemperature(tau=0.2) (row: CosineTemperature(tau_min=0.07, tau_max=0.2))"),
     (["--min_scale=0.2", "--metric_for_best_model=knn200"],
      "--min_scale 0.2 (row: 0.08), --metric_for_best_model knn200 (row: None)")],
)  # fmt: skip
def test_only_what_a_row_has_is_compared(flags, differs):
    settings = train.parse(["--preset=cifar10", *flags])
    entry = paper_row(settings, build_temperature(settings.loss, VISION), 1)
    assert entry == {"paper": {"rows": [CIFAR, GEOMETRY], "differs": differs}}
