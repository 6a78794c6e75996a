"""The audit against known constants, and its program."""

import copy
import json

import numpy as np
import pytest
import torch
from conftest import make_sentences, set_dropout
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from sweep_runs import error_of, record_of

import dystress_text
from dystress_text.analysis.audit import Audit, audit_log
from dystress_text.analysis.page import draw_losses
from dystress_text.errors import UserError
from dystress_text.finetuning.arguments import parse
from dystress_text.losses import InfoNCELoss, diagnosis, parse_loss
from dystress_text.programs import audit
from dystress_text.programs.train import main as train

TAUS = diagnosis.constants().numpy()
COSINE = "infonce(cosine(0.03, 0.05))"


@pytest.fixture(scope="module")
def model(tiny_bert):
    modules = [Transformer(str(tiny_bert)), Pooling(16)]
    return SentenceTransformer(modules=modules, device="cpu").eval()


@pytest.mark.parametrize(("loss", "tau"), [(InfoNCELoss(0.0107), 0.0107), ("ntxent(0.3)", 0.3)])
def test_constant_between_grid_points(loss, tau, model):
    found = dystress_text.audit(model, make_sentences(179), loss, batch_size=60)
    assert found.tau == pytest.approx(tau, rel=0.01)
    assert found.total_variation < 0.01
    assert found.negatives % (2 * 60 * 59) == 0  # the incomplete third batch is left out
    assert not model.training


def test_arctanh_by_its_gradient(model):
    """The gradient of a negative is its probability times 2 / (1 - s^2)."""
    model = copy.deepcopy(model)
    set_dropout(model, 0.0)
    sentences = make_sentences(60)
    found = dystress_text.audit(model, sentences, "infonce(arctanh())", batch_size=60)
    z = model.encode(sentences, convert_to_tensor=True, normalize_embeddings=True).double()
    s = (z @ z.T).clamp(max=1 - 1e-6)
    negatives = ~torch.eye(60, dtype=torch.bool)
    gradients = ((2 * s.arctanh()).softmax(1) * 2 / (1 - s**2))[negatives]
    for tau, distance in zip(found.taus, found.total_variations, strict=True):
        constant = (s / tau).softmax(1)[negatives]
        difference = constant / constant.sum() - gradients / gradients.sum()
        assert distance == pytest.approx(float(difference.abs().sum() / 2), abs=0.02)


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


@pytest.mark.parametrize(
    ("sentences", "loss", "name"),
    [
        (make_sentences(3), COSINE, "sentences"),
        (make_sentences(64), "infonce(cosine(0.03))", "tau_max"),
        (
            "a single text of more than sixty-four letters, which are no sentences",
            COSINE,
            "sentences",
        ),
        (None, COSINE, "sentences"),
        ([None] * 64, COSINE, "sentences"),
    ],
)
def test_invalid_arguments(model, sentences, loss, name):
    with pytest.raises(ValueError, match=rf"\A[^\n]*{name}[^\n]*\Z"):
        dystress_text.audit(model, sentences, loss)
    assert not model.training


def test_unknown_models_are_one_line(tmp_path):
    for model in ("no-such-model", tmp_path / "none"):
        with pytest.raises(UserError, match=r"\A[^\n]*no[^\n]*\Z"):
            dystress_text.audit(model, make_sentences(64), COSINE)


def part(step, tau, batches=10, **more):
    """A line of a log whose distance is |log tau' / tau|."""
    comparison = {
        "batches": batches,
        "tau": TAUS.tolist(),
        "total_variation": np.abs(np.log(TAUS / tau)).tolist(),
        "gradient_ratio": 0.9,
    }
    line = {"step": step, "negative": step / 100, "histograms": {"negatives": [20, 30]}}
    return line | {"comparison": comparison} | more


@pytest.mark.parametrize(
    "damage",
    [{"negative": "x"}, {"comparison": "x"}, {"comparison": {"batches": 1, "total_variation": []}}],
)
def test_damaged_logs_are_one_line(tmp_path, capsys, damage):
    (tmp_path / "run.json").write_text(json.dumps(record_of(parse([]))))
    (tmp_path / "similarity.jsonl").write_text(json.dumps(part(1, 0.05, **damage)))
    assert "similarity.jsonl" in error_of(capsys, tmp_path, main=audit.main)


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
    found = Audit("infonce(0.05)", "images", 999, 0.01, distance, ratio, 0.3, [], [])
    assert found.equivalent == equivalent


def test_picture_of_losses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    losses = ["infonce(0.1)", "infonce(focal(cosine(0.05, 0.07), margin=0.3))"]
    assert audit.main([*losses, "--figure", "own.png"]) == 0
    assert (tmp_path / "own.png").read_bytes().startswith(b"\x89PNG")
    drawn = draw_losses({loss: parse_loss(loss) for loss in losses}, (1, 2), (4, 2))
    of_tau, of_logit = drawn.axes
    s, tau = of_tau.lines[1].get_xydata().T
    positive = of_logit.lines[-1].get_xydata()[:, 1]
    assert tau == pytest.approx(0.06 + 0.01 * np.cos(np.pi * (1 + s)))
    assert positive == pytest.approx(s**2 / tau)


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ("infonce(0.05)", "--figure"),  # no run has that name
        ("infonce(0.05) infonce(0.1)", "--figure"),
        ("infonce(0.05 --figure=a.png", "--figure"),
        ("macl(alignment_adaptive(0.05,2,0.8)) --figure=a.png", "temperature"),
        ("infonce(0.05) --figure=a.xyz", "--figure"),
    ],
)
def test_wrong_command_lines(argv, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert name in error_of(capsys, *argv.split(), main=audit.main)
    assert not list(tmp_path.iterdir())


def test_run_without_comparison(tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps(record_of(parse([]))))
    assert "--log_similarity" in error_of(capsys, tmp_path, main=audit.main)
    (tmp_path / "similarity.jsonl").write_text('{"step": 1, "negative": 0.5}')
    assert "--log_similarity" in error_of(capsys, tmp_path, main=audit.main)
