"""The audit: the nearest constant against constants that are known, and the program on runs, models
and bad input.
"""

import copy
import json

import numpy as np
import pytest
from conftest import make_sentences
from matplotlib.figure import Figure
from meta_cases import leave_autocast_out
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from sweep_runs import error_of, record_of
from trainer_cases import make_task, run

import dystress_text
from dystress_text.analysis.audit import Audit, Window, in_words, windows_of
from dystress_text.config.arguments import parse
from dystress_text.errors import UserError
from dystress_text.losses import InfoNCELoss, diagnosis
from dystress_text.losses.diagnosis import BINS
from dystress_text.programs import audit
from dystress_text.programs.train import main as train

TAUS = diagnosis.constants().numpy()
COSINE = "infonce(cosine(0.03, 0.05))"


@pytest.fixture(scope="module")
def model(tiny_bert):
    transformer = Transformer(str(tiny_bert))
    return SentenceTransformer(modules=[transformer, Pooling(16)], device="cpu")


@pytest.mark.parametrize("loss", [InfoNCELoss(0.0107), InfoNCELoss(0.0687), "ntxent(0.3)"])
def test_the_nearest_constant_of_a_constant_is_itself(loss, model):
    """Though it lies between those of the grid."""
    found = dystress_text.audit(model.eval(), make_sentences(120), loss, batch_size=60)
    window = found.windows["all"]
    assert window.tau == pytest.approx(float(str(loss).strip(")").partition("(")[2]), rel=0.01)
    assert window.moved < 0.01
    assert (found.negatives > 0, model.training) == (True, False)


def test_the_audit_of_a_model_is_that_of_a_run_that_learns_nothing(
    tiny_run, tmp_path, text_file, capsys
):
    flags = [
        *tiny_run,
        "--pooler_type=avg",
        f"--loss={COSINE}",
        "--learning_rate=1e-12",
        "--train_batch_size=50",
    ]
    assert (
        train(
            [
                *flags,
                "--eval_set=none",
                "--max_steps=20",
                "--log_similarity",
                f"--output_dir={tmp_path}",
            ]
        )
        == 0
    )
    assert audit.main([str(tmp_path)]) == 0
    record = json.loads((tmp_path / "audit.json").read_text())
    sentences = text_file.read_text().splitlines()
    window = dystress_text.audit(str(tmp_path), sentences, COSINE, batch_size=50).windows["all"]
    assert window.tau == pytest.approx(record["nearest_constant"], rel=0.03)
    assert window.moved == pytest.approx(record["moved"], abs=0.01)
    assert window.pull == pytest.approx(record["pull"], abs=0.05)
    assert window.negative == pytest.approx(record["windows"]["all"]["negative"], abs=0.02)


@pytest.mark.parametrize("loss", ["infonce(learned(0.05))", "siglip()"])
def test_what_a_loss_learns_is_moved_to_the_device_of_the_model(loss, model, monkeypatch):
    """For want of a GPU on the meta device, which cannot be read at the end."""
    leave_autocast_out(monkeypatch)
    monkeypatch.setattr(
        "transformers.masking_utils._ignore_bidirectional_mask_sdpa",
        lambda *_: False,
        raising=False,
    )
    objective = dystress_text.loss(loss)
    on_meta = copy.deepcopy(model).to("meta")
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        dystress_text.audit(on_meta, make_sentences(8), objective, batch_size=4)
    assert next(objective.parameters()).device.type == "cpu"  # the caller's


def test_what_a_model_cannot_be_audited_on_names_the_parameter(model):
    for sentences, loss, message in (
        (3, COSINE, "sentences: 3 fill no"),
        (64, "infonce(cosine(0.03))", "tau_max"),
    ):
        with pytest.raises(ValueError, match=message):
            dystress_text.audit(model, make_sentences(sentences), loss)


def part(step, tau, batches=10, rule=(0.25, 0.75)):
    """A line whose distance is |log tau' / tau|, with the gradient in two bins."""
    comparison = {
        "batches": batches, "tau": TAUS.tolist(), "moved": np.abs(np.log(TAUS / tau)).tolist(), "pull": 0.9,
        "first_bin": 30, "rule": list(rule), "constants": [[0.5, 0.5]] * len(TAUS),
    }  # fmt: skip
    return {
        "step": step,
        "negative": step / 100,
        "histograms": {"negatives": [20, 30]},
        "comparison": comparison,
    }


def steps_of(windows):
    return {name: window.steps for name, window in windows.items()}


def test_windows_are_the_first_tenth_all_and_the_last_tenth_of_the_steps():
    lines = [
        line
        for k in range(1, 21)
        for line in ({"step": 5 * k - 1, "negative": 0.0}, part(5 * k, 0.02 + k / 500))
    ]
    windows, negatives = windows_of(lines, "log")
    assert negatives == 1000
    assert steps_of(windows) == {"first": (1, 10), "all": (1, 100), "last": (91, 100)}
    assert windows["first"].tau == pytest.approx(0.023, rel=0.02)
    assert windows["last"].tau == pytest.approx(0.059, rel=0.02)
    assert windows["last"].negative == pytest.approx((0.95 + 1.0) / 4)
    assert windows["all"].along_axis == pytest.approx(0.25)
    assert windows["all"].rule[30:32] - windows["all"].constant[30:32] == pytest.approx(
        [-0.25, 0.25]
    )
    lines = [part(step, 0.1, batches=0 if step == 100 else 10) for step in range(10, 101, 10)]
    assert steps_of(windows_of(lines, "log")[0]) == {
        "first": (1, 10),
        "all": (1, 90),
        "last": (81, 90),
    }
    with pytest.raises(UserError, match=r"^log compares no gradient of negatives with constants"):
        windows_of([part(step, 0.1, batches=0) for step in (100, 200, 300, 400)], "log")


@pytest.mark.parametrize(
    ("moved", "pull", "words", "equivalent"),
    [(0.018, 1, ["is the constant 0.0100 or less to within 1.8 %", "it is expected to train like it."], True),
     (0.018, 1.5, ["it is not expected to train like it.", "positives is 1.50 times that of its negatives"], False),
     (0.234, 1, ["is no constant: the nearest is 0.0100 or less, and 23.4 % of the gradient must be moved"], False)],
)  # fmt: skip
def test_words_and_verdict(moved, pull, words, equivalent):
    shares = np.full(BINS, 1 / BINS)
    window = Window((1, 200), 0.01, moved, pull, 0.3, TAUS, TAUS, shares, shares)
    said = " ".join(in_words(Audit("out", "infonce(0.05)", "images", 999, {"all": window})))
    assert said.startswith("On these images this rule is ")
    assert [part for part in words if part not in said] == []
    assert window.equivalent == equivalent


@pytest.fixture
def logged(tmp_path, corpus):
    """The folder of a run of 12 steps with a log."""
    run(
        make_task(corpus, 0.1), corpus, tmp_path, max_steps=12, logging_steps=2, log_similarity=True
    )
    (tmp_path / "run.json").write_text(json.dumps(record_of(parse([]))))
    return tmp_path


def test_a_run_is_audited_into_its_folder(logged, capsys):
    assert audit.main([str(logged)]) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    record = json.loads((logged / "audit.json").read_text())
    assert out.startswith(
        f"On these sentences this rule is the constant {record['nearest_constant']:.4f} to within "
    )
    assert record["equivalent"] == (record["moved"] < 0.1 and abs(record["pull"] - 1) < 0.1)
    lines = [json.loads(line) for line in (logged / "similarity.jsonl").read_text().splitlines()]
    parts = [line["comparison"] for line in lines if "comparison" in line]
    of_all = record["windows"]["all"]
    assert of_all["taus"][20] == 0.1
    assert of_all["moved_by_constant"][20] == pytest.approx(
        np.mean([p["moved"][20] for p in parts]), abs=2e-5
    )
    assert of_all["negative"] == pytest.approx(
        np.mean([line["negative"] for line in lines]), abs=1e-5
    )


PARTS = """
from dystress_text import ProfileTemperature, Reweighting

class Quadratic(ProfileTemperature):
    def shape(self, similarity):
        return similarity.square()

class Margin(Reweighting):
    def positive_logit(self, similarity, tau):
        return (similarity - 0.1) / tau
"""


def test_a_picture_has_the_temperature_and_logits_of_a_loss_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_parts.py").write_text(PARTS)
    own = "infonce(own_parts.Margin(own_parts.Quadratic(0.05, 0.07)))"
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, file: figures.append(self) or save(self, file)
    )
    assert audit.main(["infonce(0.1)", own, "--figure", "own.png"]) == 0
    assert (tmp_path / "own.png").read_bytes().startswith(b"\x89PNG")
    panels = figures[0].axes
    (_, (s, tau)), (*_, (_, negative), (_, positive)) = (
        [line.get_xydata().T for line in axes.lines] for axes in panels
    )
    assert (s[0], s[-1]) == (-1, 1)
    assert tau == pytest.approx(0.05 + 0.02 * s**2)
    assert positive == pytest.approx((s - 0.1) / tau)
    assert negative == pytest.approx(s / tau)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["infonce(0.05)"], "no run in 'infonce(0.05)'; --figure draws a loss"),
        (["a", "b"], "--figure: draws several; an audit is of one run"),
        (["infonce(0.05", "--figure=a.png"], "--figure: infonce(0.05: "),
        (["macl(0.05, 2, 0.8)", "--figure=a.png"], "no loss has a temperature that the similarity"),
        (["infonce(0.05)", "--figure=a.xyz"], "--figure: Format 'xyz' is not supported"),
        (["infonce(0.05)", "--figure=no/a.png"], "--figure: [Errno 2] No such file"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(argv, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert said in error_of(capsys, *argv, main=audit.main)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_audited_is_one_line(logged, capsys):
    log = logged / "similarity.jsonl"
    line = json.loads(log.read_text().splitlines()[1])
    for content, words, said in (
        (None, [logged / "nothing"], "no run in"),
        (None, [logged, "--no_such", "8"], "--no_such"),
        (
            {**line, "histograms": {"negatives": [999]}, "comparison": {"batches": 3}},
            [logged],
            "is damaged",
        ),
        ({"step": 2, "histograms": line["histograms"]}, [logged], "--log_similarity"),
        ("", [logged], "has no similarity.jsonl: train with --log_similarity"),
    ):
        if content is not None:
            log.write_text(json.dumps(content)) if content else log.unlink()
        assert said in error_of(capsys, *words, main=audit.main)
