"""Losses as strings: a written loss is read as an equal one, and an invalid string is refused."""

import inspect
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dystress_text as dt
from dystress_text.finetuning.presets import PRESETS
from dystress_text.losses import registry
from vision.pretraining import negative_free  # noqa: F401  # registers its losses
from vision.pretraining.presets import PRESETS as IMAGE_PRESETS

PUBLIC = {name: getattr(dt, name) for name in dt.losses.__all__}
WRITTEN = [
    "infonce(0.05)",
    "infonce(cosine(0.03, 0.05), bidirectional=True, detach_temperature=False)",
    "infonce(shifted_cosine(0.05, 0.07, shift=0.2, scale=1.5), hard_negative_weight=-2)",
    "ntxent(exponential(0.1, 0.2, sharpness=3), blockwise=True)",
    "ntxent(scheduled(0.1, 1, half_period=0.5, unit='run'))",
    "dcl(hardness(temo(0.01, alpha=0.04), hardness_strength=1e+20), per_view=True)",
    "dclw(hcl(learned(0.1, low=0.05, high=1, learning_rate=0.5), beta=0, tau_plus=0), sigma=2)",
    "macl(alignment_adaptive(0.05, alpha=2, a_0=0.8), both_views=True)",
    "queue(arctanh(1), queue_size=9, dim=4)",
    "queue(0.2, queue_size=9)",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_round_trip(text):
    loss = dt.parse_loss(text)
    assert str(loss) == text
    again = eval(repr(loss), PUBLIC)
    assert again == loss
    assert hash(again) == hash(loss)


@pytest.mark.filterwarnings("ignore:.*the logit")
def test_presets_have_canonical_strings():
    for preset in [*PRESETS.values(), *IMAGE_PRESETS.values()]:
        text = preset.settings["loss"]
        assert str(dt.parse_loss(text)) == text


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_round_trip_of_any_number(tau):
    loss = dt.InfoNCELoss(tau)
    assert dt.parse_loss(str(loss)).temperature.tau == tau


@pytest.mark.parametrize("scalar", [np.float32, np.float64, torch.tensor])
@pytest.mark.parametrize(
    "build",
    [
        dt.InfoNCELoss,
        lambda x: dt.InfoNCELoss(dt.ShiftedCosineTemperature(x, x, x, x)),
        lambda x: dt.InfoNCELoss(dt.LearnableTemperature(x, x / 2, x * 2, learning_rate=x)),
        lambda x: dt.InfoNCELoss(dt.ScheduledTemperature(x, x, x)),
        lambda x: dt.DCLWLoss(dt.HCLReweighting(x, x, x), x, hard_negative_weight=x),
        lambda x: dt.SigLIPLoss(x, x, learning_rate=x),
    ],
)
def test_scalars_of_other_libraries_are_numbers(build, scalar):
    loss = build(scalar(0.25))
    expected = build(0.25)
    assert str(loss) == str(expected)
    assert loss == expected
    z1 = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    z2 = z1 + 0.1
    assert loss(z1, z2).equal(expected(z1, z2))


def test_counts_and_flags_of_numpy():
    queue = dt.QueueInfoNCELoss(0.5, np.int64(8), detach_temperature=np.True_)
    assert str(queue) == str(dt.QueueInfoNCELoss(0.5, 8, detach_temperature=True))


def test_equality_and_hash_are_by_value():
    first = dt.parse_loss("infonce(learned(0.05))")
    second = dt.parse_loss("infonce(learned(0.05, 0.01, 1.0))")
    assert first == second
    assert {first: "found"}[second] == "found"
    assert hash(dt.DCLLoss(1, per_view=0)) == hash(dt.DCLLoss(1.0, per_view=False))
    assert first != dt.parse_loss("infonce(learned(0.06))")
    assert first != dt.parse_loss("rince(learned(0.05))")
    twins = torch.nn.ModuleList([first, second, first])
    assert len(list(twins.parameters())) == 2
    assert [name for name, _ in twins.named_modules() if name in "012"] == ["", "0", "1"]
    assert dt.parse_loss("infonce(constant(1))").arguments() == {"temperature": 1.0}


def test_a_star_import_hides_no_loss():
    names = {"loss": "of the user"}
    exec("from dystress_text import *", names)
    assert names["loss"] == "of the user"
    assert names["parse_loss"]("infonce(0.05)") == dt.InfoNCELoss(0.05)
    for line in ("from dystress_text import loss", "import dystress_text; dystress_text.loss"):
        with pytest.raises(ImportError, match=r"\A[^\n]*parse_loss[^\n]*\Z"):
            exec(line, {})


CONTRASTIVE = [
    each
    for each in PUBLIC.values()
    if isinstance(each, type) and issubclass(each, dt.ContrastiveLoss)
]


@pytest.mark.parametrize("kind", CONTRASTIVE)
def test_signatures_have_every_keyword_which_reaches_the_loss(kind):
    keywords = {
        "detach_temperature": False,
        "hard_negative_weight": 1.5,
        "blockwise": True,
        "gather": dt.ProcessGather(0, 2),
    }
    signature = inspect.signature(kind).parameters
    common = inspect.signature(dt.ContrastiveLoss).parameters
    assert all(signature[name] == common[name] for name in keywords)
    assert all(each.kind is not each.VAR_KEYWORD for each in signature.values())
    keywords |= {name: True for name, each in signature.items() if each.default is False}
    loss = kind(0.5, **keywords)
    assert {name: getattr(loss, name) for name in keywords} == keywords


@pytest.mark.parametrize("arguments", ["0.05, alpha=2, a_0=0.8", "0.05, 2, 0.8", ""])
def test_macl_of_0_2_names_the_temperature_that_it_took(arguments):
    with pytest.raises(dt.LossError) as error:
        dt.parse_loss(f"macl({arguments})")
    assert "macl(alignment_adaptive(0.05, alpha=2, a_0=0.8))" in str(error.value)


def test_replace_keeps_the_gather():
    gather = dt.ProcessGather(1, 4)
    queue = dt.QueueInfoNCELoss(0.2, gather=gather)
    assert queue.replace(temperature=0.1).gather is gather
    assert str(queue.replace(temperature=0.1)) == str(dt.QueueInfoNCELoss(0.1))
    assert queue.replace(gather=None).gather.world_size == 1


INVALID = {  # the part that the error names
    "infonce(shifted_cosine(0.05, 0.07, shft=-0.4))": "shifted_cosine(0.05, 0.07, shft=-0.4)",
    "infonce(shifted_cosine(0.05, 0.07))": "shifted_cosine(0.05, 0.07)",
    "infonce(0.05, temperature=1)": "infonce(0.05, temperature=1)",
    "infonce(temo(alpha=1, alpha=2))": "temo(alpha=1, alpha=2)",
    "infonce(0.05, gather=None)": "infonce(0.05, gather=None)",
    "infonce(cosine(0.2, 0.1))": "cosine(0.2, 0.1)",
    "infonce(hcl(focal(0.1)))": "hcl(focal(0.1))",
    "dcl(adnce(0.1, weigh_positive=True))": "dcl(adnce(0.1, weigh_positive=True))",
    "cosine(0.1, 0.2)": "cosine(0.1, 0.2)",
    "infonce": "infonce",
    "infonc(0.05)": "infonc: unknown (did you mean infonce?)",
    "infonce(*[0.05])": "*[0.05]",
    "infonce(0.05 + 0.05)": "0.05 + 0.05",
    "infonce(0.05)\0": "infonce(0.05)",
    "__import__('os').system('x')": "__import__('os').system",
    "(" * 300 + ")" * 300: "(((",
    "infonce(" + "9" * 400 + ")": "infonce(999",
    "infonce(" + "9" * 2000 + ")": "infonce(999",
}


@pytest.mark.parametrize(("text", "part"), INVALID.items(), ids=range(len(INVALID)))
def test_an_error_begins_with_the_invalid_part(text, part):
    with pytest.raises(dt.LossError) as error:
        dt.parse_loss(text)
    assert str(error.value).startswith(part)
    assert len(str(error.value)) < 500


@given(st.text(max_size=60) | st.text("infocesqu.ld(),=-0'\"[]*{}", max_size=60))
def test_any_string_is_a_loss_or_refused(text):
    try:
        loss = dt.parse_loss(text)
    except dt.LossError:
        return
    assert dt.parse_loss(str(loss)) == loss


OWN = """
import dystress_text as dt

@dt.register("square")
class Square(dt.ProfileTemperature):
    def shape(self, similarity):
        return similarity.square()

@dt.register("doubled")
class Doubled(dt.Reweighting):
    def logits(self, similarity, tau):
        return (2 * similarity / tau,)

@dt.register("margin")
class Margin(dt.NTXentLoss):
    def row_loss(self, positive, negatives, similarity):
        return (negatives - positive + 1).relu()

class Unnamed(dt.Temperature):
    def forward(self, similarity):
        return 0.1 + 0 * similarity

class Weighted(dt.DCLLoss):
    def __init__(self, temperature, weight=1, **options):
        super().__init__(temperature, **options)
        self.weight = weight
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Write a user's module into the working directory; return its name."""
    (tmp_path / "my_losses.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "PARTS", dict(registry.PARTS))
    yield "my_losses"
    sys.modules.pop("my_losses", None)


def test_registered_classes_of_a_user(own_module):
    before = list(sys.path)
    dt.parse_loss("infonce(my_losses.Square(0.05, 0.07))", own_classes=True)  # imports the module
    assert sys.path == before
    loss = dt.parse_loss("margin(doubled(square(0.1, 0.14)))")
    assert str(loss) == "margin(doubled(square(0.1, 0.14)))"
    # both negatives have 2 s / tau = 0, the positive s / tau = 1 / 0.14
    value = loss(torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    assert float(value) == pytest.approx(0.0)
    value = loss(torch.eye(4), -torch.eye(4))
    assert float(value) == pytest.approx(math.log(6) + 1 / 0.14 + 1, rel=1e-6)


def test_options_that_a_class_of_a_user_passes_on(own_module):
    text = "my_losses.Weighted(0.1, weight=2, per_view=True, blockwise=True)"
    loss = dt.parse_loss(text, own_classes=True)
    assert str(loss) == text
    assert (loss.weight, loss.per_view, loss.blockwise) == (2, True, True)


def test_only_a_command_line_imports_a_dotted_name(own_module):
    text = "infonce(my_losses.Unnamed())"
    with pytest.raises(dt.LossError, match=r"my_losses\.Unnamed"):
        dt.parse_loss(text)
    assert "my_losses" not in sys.modules
    loss = dt.parse_loss(text, own_classes=True)
    assert str(loss) == text
    assert dt.parse_loss(text) == loss  # a record of this process can be read
    for wrong in ("os.getcwd", "no_such.Thing", "my_losses.Thing"):
        with pytest.raises(dt.LossError, match=f"^{wrong}: "):
            dt.parse_loss(f"infonce({wrong}())", own_classes=True)


@pytest.mark.parametrize(
    "line",
    [
        "def __init__(self, *taus): super().__init__()",
        "def __init__(self, tau): self.core = dt.losses.Reweighting(tau)",
        "no_such_name",
    ],
)
def test_an_invalid_class_of_a_user_is_refused(line, own_module, tmp_path):
    code = f"import dystress_text as dt\nclass Broken(dt.Temperature):\n    {line}\n"
    (tmp_path / "my_losses.py").write_text(code + "    def forward(self, s): ...")
    with pytest.raises(dt.LossError, match=r"my_losses\.Broken"):
        dt.parse_loss("infonce(my_losses.Broken(0.1))", own_classes=True)


def test_a_registered_name_is_not_replaced():
    own = type("CosineTemperature", (dt.Temperature,), {"__module__": "users"})
    with pytest.raises(ValueError, match="cosine"):
        dt.register("cosine")(own)
    assert registry.PARTS["cosine"] is dt.CosineTemperature
