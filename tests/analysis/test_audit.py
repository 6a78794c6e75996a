"""The audit against known constants, and its program."""

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
from dystress_text.analysis.audit import Audit, audit_log, summary
from dystress_text.config.arguments import parse
from dystress_text.losses import InfoNCELoss, diagnosis
from dystress_text.programs import audit
from dystress_text.programs.train import main as train

TAUS = diagnosis.constants().numpy()
COSINE = "infonce(cosine(0.03, 0.05))"


@pytest.fixture(scope="module")
def model(tiny_bert):
    transformer = Transformer(str(tiny_bert))
    return SentenceTransformer(modules=[transformer, Pooling(16)], device="cpu")


@pytest.mark.parametrize(
    ("loss", "tau"),
    [(InfoNCELoss(0.0107), 0.0107), (InfoNCELoss(0.0687), 0.0687), ("ntxent(0.3)", 0.3)],
)
def test_constant_between_grid_points(loss, tau, model):
    found = dystress_text.audit(model.eval(), make_sentences(120), loss, batch_size=60)
    assert found.tau == pytest.approx(tau, rel=0.01)
    assert found.total_variation < 0.01
    assert found.negatives > 0
    assert not model.training


def test_model_and_run_agree(tiny_run, tmp_path, text_file):
    """With a learning rate that changes nothing."""
    flags = ["--pooler_type=avg", f"--loss={COSINE}", "--learning_rate=1e-12", "--eval_set=none"]
    flags += ["--train_batch_size=50", "--max_steps=20", "--log_similarity"]
    assert train([*tiny_run, *flags, f"--output_dir={tmp_path}"]) == 0
    assert audit.main([str(tmp_path)]) == 0
    record = json.loads((tmp_path / "audit.json").read_text())
    sentences = text_file.read_text().splitlines()
    found = dystress_text.audit(str(tmp_path), sentences, COSINE, batch_size=50)
    assert found.tau == pytest.approx(record["tau"], rel=0.03)
    assert found.total_variation == pytest.approx(record["total_variation"], abs=0.01)
    assert found.gradient_ratio == pytest.approx(record["gradient_ratio"], abs=0.05)
    assert found.negative == pytest.approx(record["negative"], abs=0.02)


def test_learned_loss_on_the_models_device(model, monkeypatch):
    """The meta device stands in for a GPU; it cannot be read at the end."""
    leave_autocast_out(monkeypatch)
    monkeypatch.setattr(
        "transformers.masking_utils._ignore_bidirectional_mask_sdpa",
        lambda *_: False,
        raising=False,
    )
    objective = dystress_text.loss("siglip()")
    with pytest.raises(NotImplementedError, match="meta"):
        dystress_text.audit(copy.deepcopy(model).to("meta"), make_sentences(8), objective, 4)
    assert next(objective.parameters()).device.type == "cpu"


@pytest.mark.parametrize(
    ("sentences", "loss", "name"),
    [(3, COSINE, "sentences"), (64, "infonce(cosine(0.03))", "tau_max")],
)
def test_invalid_arguments(model, sentences, loss, name):
    with pytest.raises(ValueError, match=name):
        dystress_text.audit(model, make_sentences(sentences), loss)


def part(step, tau, batches=10):
    """A line whose distance is |log tau' / tau|, with the keys of 0.2."""
    distances = np.abs(np.log(TAUS / tau)).tolist()
    comparison = {"batches": batches, "tau": TAUS.tolist(), "moved": distances, "pull": 0.9}
    histograms = {"negatives": [20, 30]}
    return {
        "step": step,
        "negative": step / 100,
        "histograms": histograms,
        "comparison": comparison,
    }


def test_mean_over_a_log():
    lines = [part(5, 0.05), {"step": 7, "negative": 0.0}, part(10, 0.05), part(15, 0.9, batches=0)]
    found = audit_log(lines, "log", "infonce(0.05)", "sentences")
    assert found.negatives == 150
    assert found.tau == pytest.approx(0.05, rel=0.02)
    assert found.gradient_ratio == pytest.approx(0.9)
    assert found.negative == pytest.approx((0.05 + 0.0 + 0.1 + 0.15) / 4)


@pytest.mark.parametrize(
    ("distance", "ratio", "equivalent"),
    [(0.018, 1, True), (0.018, 1.5, False), (0.234, 1, False)],
)
def test_equivalence(distance, ratio, equivalent):
    found = Audit("infonce(0.05)", "images", 999, 0.01, distance, ratio, 0.3, TAUS, TAUS)
    assert found.equivalent == equivalent
    assert f"{100 * distance:.1f} %" in summary(found)


@pytest.fixture
def logged(tmp_path, corpus):
    """The folder of a run of 12 steps with a log."""
    run(
        make_task(corpus, 0.1), corpus, tmp_path, max_steps=12, logging_steps=2, log_similarity=True
    )
    (tmp_path / "run.json").write_text(json.dumps(record_of(parse([]))))
    return tmp_path


def test_record_of_a_run(logged, capsys):
    assert audit.main([str(logged)]) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    record = json.loads((logged / "audit.json").read_text())
    assert f"{record['tau']:.4f}" in out
    lines = [json.loads(line) for line in (logged / "similarity.jsonl").read_text().splitlines()]
    negatives = np.mean([line["negative"] for line in lines])
    assert record["taus"][20] == 0.1
    assert record["negative"] == pytest.approx(negatives, abs=1e-5)


def test_picture_of_losses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, file: figures.append(self) or save(self, file)
    )
    losses = ["infonce(0.1)", "infonce(focal(cosine(0.05, 0.07), margin=0.3))"]
    assert audit.main([*losses, "--figure", "own.png"]) == 0
    assert (tmp_path / "own.png").read_bytes().startswith(b"\x89PNG")
    of_tau, of_logit = figures[0].axes
    s, tau = of_tau.lines[1].get_xydata().T
    positive = of_logit.lines[-1].get_xydata()[:, 1]
    assert tau == pytest.approx(0.06 + 0.01 * np.cos(np.pi * (1 + s)))
    assert positive == pytest.approx(s**2 / tau)


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["infonce(0.05)"], "--figure"),
        (["a", "b"], "--figure"),
        (["infonce(0.05", "--figure=a.png"], "--figure"),
        (["macl(0.05, 2, 0.8)", "--figure=a.png"], "temperature"),
        (["infonce(0.05)", "--figure=a.xyz"], "--figure"),
        (["infonce(0.05)", "--figure=no/a.png"], "--figure"),
    ],
)
def test_wrong_command_lines(argv, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert name in error_of(capsys, *argv, main=audit.main)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "line",
    [
        {"step": 2, "histograms": {"negatives": [999]}, "comparison": {"batches": 3}},
        {"step": 2, "histograms": {"negatives": [999]}},
        None,
    ],
)
def test_damaged_or_missing_logs(logged, line, capsys):
    log = logged / "similarity.jsonl"
    if line is None:
        log.unlink()
    else:
        log.write_text(json.dumps(line))
    assert "similarity.jsonl" in error_of(capsys, logged, main=audit.main)
