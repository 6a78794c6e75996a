"""A loss as text: what is written is read as an equal loss; what is wrong is named at its place,
and never run.
"""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import assert_same, views

import dystress_text as dt
from dystress_text.config.presets import PRESETS
from dystress_text.losses import registry
from vision.pretraining import negative_free  # noqa: F401  # its losses have names
from vision.pretraining.presets import PRESETS as IMAGE_PRESETS

PUBLIC = {name: getattr(dt, name) for name in dt.losses.__all__}


@pytest.mark.filterwarnings("ignore:.*the logit s / tau")
@pytest.mark.parametrize("presets", [PRESETS, IMAGE_PRESETS], ids=["text", "images"])
def test_presets_hold_the_text_that_their_losses_write(presets):
    texts = {preset.settings["loss"] for preset in presets.values()}
    assert {str(dt.loss(text)) for text in texts} == texts


ends = st.floats(0.01, 0.5).flatmap(lambda low: st.tuples(st.just(low), st.floats(low, low * 1.5)))
profiles = st.one_of(
    st.builds(
        lambda kind, pair: kind(*pair),
        st.sampled_from([dt.CosineTemperature, dt.LinearTemperature]),
        ends,
    ),
    st.builds(
        lambda pair, shift: dt.ShiftedCosineTemperature(*pair, shift), ends, st.floats(-1, 1)
    ),
    st.builds(
        lambda pair, k: dt.ShiftedCosineTemperature(*pair, -0.4, scale=k), ends, st.floats(0.5, 1.5)
    ),
    st.builds(
        lambda pair, c: dt.ExponentialTemperature(*pair, sharpness=c), ends, st.integers(1, 9)
    ),
)
temperatures = st.one_of(
    st.floats(0.01, 1),
    profiles,
    st.builds(
        dt.LearnableTemperature, st.floats(0.05, 0.5), learning_rate=st.sampled_from([1e-3, 0.5])
    ),
    st.builds(
        lambda pair, unit: dt.ScheduledTemperature(*pair, unit=unit),
        ends,
        st.sampled_from(["epoch", "run"]),
    ),
    st.builds(
        dt.AlignmentAdaptiveTemperature, st.floats(0.01, 1), st.floats(0, 3), st.floats(-1, 1)
    ),
)
reweightings = st.one_of(
    temperatures,
    st.builds(dt.HCLReweighting, temperatures, st.floats(0, 2), st.floats(0, 0.9)),
    st.builds(dt.FocalReweighting, temperatures, st.floats(-2, 1.9)),
    st.builds(dt.HardnessReweighting, temperatures, st.floats(0, 1e20)),
)
options = {"detach_temperature": st.booleans(), "hard_negative_weight": st.floats(-9, 9)}
losses = st.one_of(
    st.builds(dt.InfoNCELoss, reweightings, bidirectional=st.booleans(), **options),
    st.builds(
        dt.DCLWLoss,
        reweightings,
        st.floats(0.1, 2),
        per_view=st.booleans(),
        blockwise=st.sampled_from([None, True, False]),
    ),
    st.builds(
        dt.MACLLoss,
        st.floats(0.01, 1),
        st.floats(0, 3),
        st.floats(-1, 1),
        both_views=st.booleans(),
        **options,
    ),
    st.builds(lambda reweighting: dt.MACLLoss(temperature=reweighting), reweightings),
    st.builds(
        dt.InfoNCELoss, st.builds(dt.ADNCEReweighting, temperatures, weigh_positive=st.booleans())
    ),
    st.builds(
        dt.SigLIPLoss, st.floats(0.1, 99), st.floats(-99, 99), learning_rate=st.floats(1e-6, 1)
    ),
    st.builds(dt.QueueInfoNCELoss, reweightings, st.integers(1, 9), st.sampled_from([None, 4])),
)


@pytest.mark.filterwarnings("ignore:.*the logit s / tau")
@given(losses)
def test_a_loss_is_read_as_it_is_written(loss):
    assert dt.loss(str(loss)) == loss
    assert eval(repr(loss), PUBLIC) == loss
    assert str(dt.loss(str(loss))) == str(loss)


def test_two_losses_are_equal_by_value_and_two_modules():
    first, second = dt.loss("infonce(learned(0.05))"), dt.loss("infonce(learned(0.05, 0.01, 1.0))")
    assert first == second != dt.loss("infonce(learned(0.06))")
    assert first != dt.loss("rince(learned(0.05))")
    assert len({first, second}) == 2  # torch keeps modules in sets
    assert len(list(torch.nn.ModuleList([first, second]).parameters())) == 2
    assert str(first.replace(temperature=0.1)) == "infonce(0.1)"


SHIFTED = "it takes tau_min, tau_max, shift, scale"
OF_INFONCE = (
    "it takes temperature, bidirectional, detach_temperature, hard_negative_weight, blockwise"
)
WRONG = {
    "infonce(shifted_cosine(0.05, 0.07, shft=-0.4))": (
        f"shifted_cosine(0.05, 0.07, shft=-0.4): no parameter shft (did you mean shift?); {SHIFTED}"
    ),
    "infonce(shifted_cosine(0.05, 0.07))": (
        f"shifted_cosine(0.05, 0.07): shift must be given; {SHIFTED}"
    ),
    "byol(0.1)": "byol(0.1): it takes no arguments",
    "infonce(0.05, True)": f"infonce(0.05, True): at most 1 arguments without a name; {OF_INFONCE}",
    "infonce(0.05, temperature=1)": "infonce(0.05, temperature=1): temperature is given twice",
    "infonce(0.05, gather=None)": f"infonce(0.05, gather=None): no parameter gather; {OF_INFONCE}",
    "infonce(cosine(0.2, 0.1))": (
        "cosine(0.2, 0.1): tau_min must not exceed tau_max, got tau_min=0.2 > tau_max=0.1"
    ),
    "infonce(cosine('a', 1))": "cosine('a', 1): tau_min must be a number, got 'a'",
    "infonce(0.05, detach_temperature=3)": (
        "infonce(0.05, detach_temperature=3): detach_temperature must be True or False, got 3"
    ),
    "infonce(hcl(focal(0.1)))": (
        "hcl(focal(0.1)): temperature must be no reweighting itself, got focal(0.1, margin=0.3)"
    ),
    "dclw(adnce(0.1))": (
        "dclw(adnce(0.1)): adnce does not go with dclw: each has a sigma for weights of its own"
    ),
    "dcl(adnce(0.1, weigh_positive=True))": (
        "dcl(adnce(0.1, weigh_positive=True)): weigh_positive: DCLLoss has no "
        "positive in the denominator to weigh"
    ),
    "infonce(dcl(0.1))": (
        "infonce(dcl(0.1)): temperature must be a temperature or a number, got DCLLoss(0.1)"
    ),
    "infonce(learned(scheduled(0.1, 1)))": (
        "learned(scheduled(0.1, 1)): temperature scheduled(0.1, 1, half_period=200, "
        "unit='epoch') has nothing to learn; a constant or profile has"
    ),
    "siglip(hard_negative_weight=1)": (
        "siglip(hard_negative_weight=1): hard_negative_weight must be 0: SigLIP has no "
        "softmax whose logits it could be added to"
    ),
    "cosine(0.1, 0.2)": (
        "cosine(0.1, 0.2): no loss by itself; an objective takes it, as in infonce(cosine(0.1, "
        "0.2))"
    ),
    "infonce": "infonce: a name with its arguments is needed, such as infonce(0.05)",
    "infonce(cosine)": "cosine: a name needs its arguments",
    "infonc(0.05)": "infonc: unknown (did you mean infonce?); known are ",
    "infonce(0.05": "infonce(0.05: '(' was never closed",
    "": ": invalid syntax",
    "infonce(*[0.05])": "infonce(*[0.05]): no stars",
    "infonce(**{'temperature': 0.05})": "infonce(**{'temperature': 0.05}): no stars",
    "infonce(f'{0.05}')": "f'{0.05}': not a number, text or part",
    "infonce(0.05 + 0.05)": "0.05 + 0.05: not a number, text or part",
    "infonce([0.05])": "[0.05]: not a number, text or part",
    "infonce(0.05)\0": "infonce(0.05)\0: source code string cannot contain null bytes",
    "__import__('os').system('x')": "__import__('os').system: not a name",
    "os.system('x')": (
        "os.system: a class of your own is not loaded here; import its module and register it"
    ),
    "(" * 10_000: f"{'(' * 97}...: longer than 1000 characters",
    "(" * 300 + ")" * 300: f"{'(' * 97}...: too many nested parentheses",
    "infonce(0.05) infonce(0.06)": "infonce(0.05) infonce(0.06): invalid syntax",
    "infonce(0.05), 1": "infonce(0.05), 1: a name with its arguments is needed",
    "infonce(0.05)(0.06)": "infonce(0.05): not a name",
    "infonce(lambda=1)": "infonce(lambda=1): invalid syntax",
    "infonce(x:=0.05)": "(x := 0.05): not a number, text or part",
    "infonce(True)": "infonce(True): temperature must be a temperature or a number, got True",
    "infonce('\ud800')": "infonce('\ud800'): 'utf-8' codec can't encode character",
    "infonce(-1e999)": "-1e309: too large a number",
    "infonce(" + "9" * 400 + ")": "9" * 97 + "...: too large a number",
    "infonce(learned(0.1, low=None))": "learned(0.1, low=None): low must be a number, got None",
    "infonce(learned(learned(0.1)))": (
        "learned(learned(0.1)): temperature learned(0.1, low=0.01, high=1) has nothing"
    ),
    "queue(0.1, queue_size=3.5)": (
        "queue(0.1, queue_size=3.5): queue_size must be a whole number, got 3.5"
    ),
    "queue(0.1, dim=1e30)": "queue(0.1, dim=1e+30): dim must lie in [1, 65536], got 1e+30",
    "infonce(0.05, blockwise=3)": (
        "infonce(0.05, blockwise=3): blockwise must be True or False, got 3"
    ),
    "infonce(adnce(0.1, weigh_positive='no'))": (
        "adnce(0.1, weigh_positive='no'): weigh_positive must be True or False, got 'no'"
    ),
    "infonce(adnce(0.1, sigma=1e-200))": (
        "adnce(0.1, sigma=1e-200): sigma must lie in [1e-6, inf), got 1e-200"
    ),
    "infonce(adnce(0.1, mu=1e300))": (
        "adnce(0.1, mu=1e+300): mu must lie in (-1e3, 1e3), got 1e+300"
    ),
    "infonce(0.05,\n1) # a comment": "infonce(0.05, 1): at most 1 arguments",
    "infonce(" + "-" * 900 + "1)": "infonce(" + "-" * 89 + "...: ",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_wrong_is_named_at_its_place(text, message):
    with pytest.raises(dt.LossError) as error:
        dt.loss(text)
    assert str(error.value).startswith(message)
    assert len(str(error.value)) < 500


@given(st.text(max_size=60) | st.text("infocesqu.ld(),=-0'\"[]*{}", max_size=60))
def test_any_text_is_a_loss_or_refused(text):
    try:
        loss = dt.loss(text)
    except dt.LossError:
        return
    assert dt.loss(str(loss)) == loss


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
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """The module of a user, in the working directory."""
    (tmp_path / "my_losses.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "PARTS", dict(registry.PARTS))
    yield "my_losses"
    sys.modules.pop("my_losses", None)


def test_a_class_of_the_users_own_joins_with_one_decorator(own_module):
    """As CONTRIBUTING shows it: five lines each, and nothing else to touch."""
    before = list(sys.path)
    dt.loss(
        "infonce(my_losses.Square(0.05, 0.07))", own_classes=True
    )  # loads the module, whose names are known then
    assert sys.path == before
    loss = dt.loss("margin(doubled(square(0.1, 0.14)))")
    assert str(loss) == "margin(doubled(square(0.1, 0.14)))" == str(dt.loss(str(loss)))
    z = views(5, 4)
    for form in (False, True):
        found = loss.replace(blockwise=form)(*z)
        tau = [
            [0.1 + 0.04 * float(a @ b) ** 2 for b in units] for units in [_units(z)] for a in units
        ]
        assert_same([found], [_by_hand(_units(z), tau)])


def _units(z):
    return torch.nn.functional.normalize(torch.cat(z).detach(), dim=1)


def _by_hand(units, tau):
    """The mean of relu(logsumexp(2 s_n / tau_n) - s_p / tau_p + 1) over both views' anchors."""
    n, total = len(units) // 2, []
    for i, anchor in enumerate(units):
        p = (i + n) % (2 * n)
        logits = [2 * (anchor @ units[j]) / tau[i][j] for j in range(2 * n) if j not in (i, p)]
        total.append((torch.stack(logits).logsumexp(0) - anchor @ units[p] / tau[i][p] + 1).relu())
    return torch.stack(total).mean()


def test_a_dotted_name_is_loaded_by_a_command_line_alone(own_module):
    text = "infonce(my_losses.Unnamed())"
    with pytest.raises(
        dt.LossError, match=r"my_losses\.Unnamed: a class of your own is not loaded here"
    ):
        dt.loss(text)
    assert "my_losses" not in sys.modules
    loss = dt.loss(text, own_classes=True)
    assert str(loss) == text
    assert dt.loss(text) == loss  # its record can be read in this process
    for wrong, reason in {
        "os.getcwd": "neither a temperature",
        "no_such.Thing": "cannot be loaded",
        "my_losses.Thing": "cannot be loaded",
    }.items():
        with pytest.raises(dt.LossError, match=f"^{wrong}: {reason}"):
            dt.loss(f"infonce({wrong}())", own_classes=True)


BROKEN = {
    "def __init__(self, tau, /): super().__init__()": (
        "the constructor of Broken takes tau without a name"
    ),
    "def __init__(self, *taus): super().__init__()": (
        r"the constructor of Broken takes \*taus without a name"
    ),
    "def __init__(self, tau): super().__init__()": (
        "the constructor of Broken must keep tau as self.tau"
    ),
    "def __init__(self, tau): super().__init__(); self.tau = 2 * tau": (
        "the constructor of Broken must keep its arguments as they are"
    ),
    "def __init__(self, tau): self.core = dt.losses.Reweighting(tau)": (
        "AttributeError: cannot assign module before "
    ),
    "no_such_name": "cannot be loaded: NameError: name 'no_such_name' is not defined",
    "def": "cannot be loaded: SyntaxError: invalid syntax",
}


@pytest.mark.parametrize(("line", "message"), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_class_that_is_no_value_is_refused(line, message, own_module, tmp_path):
    text = (
        f"import dystress_text as dt\nclass Broken(dt.Temperature):\n    {line}\n    def "
        "forward(self, s): ..."
    )
    (tmp_path / "my_losses.py").write_text(text)
    with pytest.raises(dt.LossError, match=rf"my_losses\.Broken(\(0\.1\))?: {message}"):
        dt.loss("infonce(my_losses.Broken(0.1))", own_classes=True)


def test_what_is_no_part_or_no_name_is_not_registered():
    for name in ("my square", "a.b", "lambda", "\uff53quare", dt.CosineTemperature):
        with pytest.raises(
            ValueError, match=r"^a part needs a name, as in @register\('square'\), got"
        ):
            dt.register(name)
    with pytest.raises(TypeError, match="neither a temperature nor a reweighting nor an objective"):
        dt.register("square")(torch.nn.Linear)


def test_a_constant_is_its_number_and_a_class_of_ones_own_is_none():
    own = type("Warm", (dt.ConstantTemperature,), {"__module__": "users"})
    assert dt.loss("infonce(constant(1))").arguments() == {"temperature": 1.0}
    assert str(dt.InfoNCELoss(own(0.1))) == "infonce(users.Warm(0.1))"
    assert dt.InfoNCELoss(own(0.1)) != dt.InfoNCELoss(0.1)


def test_numbers_of_numpy_are_written_as_numbers():
    assert (
        str(dt.InfoNCELoss(dt.CosineTemperature(np.float64(2), np.float64(2.5))))
        == "infonce(cosine(2, 2.5))"
    )


def test_a_users_class_does_not_take_the_name_of_one_of_the_core():
    own = type("CosineTemperature", (dt.Temperature,), {"__module__": "users"})
    with pytest.raises(ValueError, match="already: register another name"):
        dt.register("cosine")(own)
    assert registry.PARTS["cosine"] is dt.CosineTemperature
