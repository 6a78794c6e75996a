"""Rules on pairs against loops over explicit pairs in fp64: losses and gradients, in both forms and over processes."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import rule_loops as loops
import torch
from dystress_text.core.rows import decoupled_rows
from gather_cases import losses_of_ranks, own
from processes import in_threads
from rule_cases import RULES, quiet

from dystress_text.core import (
    ADNCERule,
    ConstantTemperature,
    DCLLoss,
    DebiasedRule,
    FocalRule,
    HardNegativeRule,
    HardnessRule,
    InfoNCELoss,
    LearnableTemperature,
    NTXentLoss,
    PiecewiseLinearTemperature,
    QueueInfoNCELoss,
    RINCELoss,
    RobustTemperature,
    SampleTemperature,
    ShiftedCosineTemperature,
    SigLIPLoss,
    TeMoTemperature,
    blockwise,
    make_temperature,
)
from dystress_text.core.diagnosis import pair_sums

FORMS = pytest.mark.parametrize("form", [False, True], ids=["plain", "blockwise"])


EVERY_RULE = pytest.mark.parametrize("name", RULES)
OBJECTIVES = {"InfoNCE": (InfoNCELoss, loops.simcse_rows), "NT-Xent": (NTXentLoss, loops.simclr_rows)}
BOTH = pytest.mark.parametrize("objective", OBJECTIVES)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blockwise, "CPU_BLOCK", 4)


def views(n, dim, count=2, seed=0):
    """Correlated views of very different lengths."""
    generator = torch.Generator().manual_seed(100 * n + dim + seed)
    base = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    lengths = torch.logspace(-0.5, 0.5, n, dtype=torch.float64).unsqueeze(1)
    drawn = [base + 0.7 * torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(count)]
    return [(lengths * z).requires_grad_() for z in drawn]


def by_loop(rows_of, row_loss, z):
    """Mean loss over the anchors and its gradients."""
    value = loops.mean([row_loss(pos, negs) for pos, negs in rows_of(*z)])
    return value, torch.autograd.grad(value, z)


def assert_same(found, expected, limit=1e-10):
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm().item() <= limit * y.norm().item(), (x, y)


# ---- losses and gradients ------------------------------------------------------------------------------------------


@FORMS
@BOTH
@EVERY_RULE
def test_a_rule_is_its_loop_over_pairs(name, objective, form):
    rule, row_loss = RULES[name]
    loss, rows_of = OBJECTIVES[objective]
    z = views(7, 3)
    value, gradients = by_loop(rows_of, row_loss, z)
    found = loss(rule(), detach_temperature=name != "temo", blockwise=form)(*z)
    assert_same([found, *torch.autograd.grad(found, z)], [value, *gradients])


def test_the_cases_hold_rows_with_and_without_the_bound():
    for name in ("debiased, bound", "hcl, sharp"):
        _, row_loss = RULES[name]
        moved = []
        for pos, negs in loops.simcse_rows(*views(7, 3)):
            leaf = [s.detach().requires_grad_() for s in negs]
            loss = row_loss(pos.detach(), leaf)
            moved.append(bool(loss.requires_grad))
        assert len(set(moved)) == 2, name


@pytest.mark.parametrize("objective", ["rince", "siglip"])
@FORMS
def test_an_objective_that_is_a_rule_is_its_loop(objective, form):
    z = views(7, 3)
    if objective == "rince":
        loss = RINCELoss(0.2, q=0.5, lam=0.01, blockwise=form)
        value, gradients = by_loop(loops.simcse_rows, partial(loops.rince, tau=0.2, q=0.5, lam=0.01), z)
        found = loss(*z)
        assert_same([found, *torch.autograd.grad(found, z)], [value, *gradients])
        return
    loss = SigLIPLoss(8.0, -3.0, blockwise=form).double()
    rule = loss.temperature
    log_scale, bias = (p.detach().clone().requires_grad_() for p in (rule.log_scale, rule.bias))
    rows = loops.simcse_rows(*z)
    value = loops.mean([loops.siglip(pos, negs, log_scale.exp(), bias) for pos, negs in rows])
    expected = torch.autograd.grad(value, [*z, log_scale, bias])
    found = loss(*z)
    assert_same([found, *torch.autograd.grad(found, [*z, rule.log_scale, rule.bias])], [value, *expected])


@FORMS
def test_siglip_is_exact_where_a_pair_costs_nothing(form):
    z = views(6, 4)
    loss = SigLIPLoss(100.0, -150.0, blockwise=form)  # in fp32 softplus of -110 is 0, and its logarithm infinite
    scale, bias = (torch.tensor(x, dtype=torch.float64) for x in (100.0, -150.0))
    expected = loops.mean([loops.siglip(p, n, scale, bias) for p, n in loops.simcse_rows(*z)])
    found = loss(*(x.float() for x in z))
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    gradients = zip(torch.autograd.grad(found, z), torch.autograd.grad(expected, z), strict=True)
    assert all((a - b).norm() < 1e-5 * b.norm() for a, b in gradients)


LOW = {  # at the temperature 0.02, where fp32 holds neither exp(l) nor a small share of it
    "debiased": (lambda: DebiasedRule(0.02, 1e-6), partial(loops.debiased, tau=0.02, tau_plus=1e-6)),
    "hcl": (lambda: HardNegativeRule(0.02, 1.0, 1e-6), partial(loops.hcl, tau=0.02, tau_plus=1e-6, beta=1.0)),
    "focal": (lambda: quiet(FocalRule, 0.02, 0.3), partial(loops.focal, tau=0.02, margin=0.3)),
    "adnce": (lambda: ADNCERule(0.02, 0.4, 0.05), partial(loops.adnce, tau=0.02, mu=0.4, sigma=0.05)),
    "hardness": (lambda: HardnessRule(0.02, 9.0), partial(loops.hardness, tau=0.02, strength=9.0)),
}


@pytest.mark.parametrize("name", LOW)
@FORMS
def test_low_temperatures_in_fp32(name, form):
    rule, row_loss = LOW[name]
    z = views(9, 4)
    value, gradients = by_loop(loops.simcse_rows, row_loss, z)
    found = InfoNCELoss(rule(), blockwise=form)(*(x.float() for x in z))
    assert_same([found, *torch.autograd.grad(found, z)], [value, *gradients], 1e-5)


@pytest.mark.parametrize("name", ["hcl", "focal", "adnce", "hardness"])
@FORMS
def test_a_rule_wraps_any_temperature(name, form):
    """Of a profile, each pair has its own temperature; a learned one gets its gradient through the rule."""
    z = views(6, 3)
    profile = ShiftedCosineTemperature(0.2, 0.3, shift=-0.4)
    build = {
        "hcl": lambda t: HardNegativeRule(t, 1.0, 0.01), "focal": lambda t: quiet(FocalRule, t, 0.3),
        "adnce": lambda t: ADNCERule(t, 0.4, 0.5), "hardness": lambda t: HardnessRule(t, 3.0),
    }[name]  # fmt: skip
    found = [InfoNCELoss(build(profile), detach_temperature=d, blockwise=form)(*z) for d in (True, False)]
    assert found[0].item() == pytest.approx(found[1].item())
    learned = [build(LearnableTemperature(ConstantTemperature(0.2))).double() for _ in range(2)]
    gradients = []
    for rule, one in zip(learned, (False, form), strict=True):
        gradients.append(torch.autograd.grad(InfoNCELoss(rule, blockwise=one)(*z), [*rule.parameters(), *z]))
    assert_same(gradients[1], gradients[0])
    step = 1e-5
    ends = [InfoNCELoss(build(0.2 + sign * step))(*z).item() for sign in (1, -1)]
    free = learned[0].temperature.free
    (slope,) = torch.autograd.grad(
        learned[0].temperature(torch.zeros((), dtype=torch.float64)), free
    )  # tau by the free number
    assert float(gradients[0][0]) == pytest.approx((ends[0] - ends[1]) / (2 * step) * float(slope), rel=1e-5)


@EVERY_RULE
@BOTH
def test_processes_together_are_one(name, objective):
    z = views(6, 3)
    rule, _ = RULES[name]
    loss, _ = OBJECTIVES[objective]
    detach = name != "temo"
    whole = loss(rule(), detach_temperature=detach, blockwise=False)(*z)
    for form in (False, True):
        shares = losses_of_ranks(loss, rule(), z, 2, detach_temperature=detach, blockwise=form)
        value = torch.stack(shares).mean()
        assert_same([value, *torch.autograd.grad(value, z)], [whole, *torch.autograd.grad(whole, z, retain_graph=True)])


@EVERY_RULE
@FORMS
def test_hard_negatives_and_equal_samples(name, form):
    """Against the loop over the negatives that are left, with those of a third view."""
    z = views(5, 3, count=3)
    ids = torch.tensor([0, 1, 2, 1, 4])
    others = torch.tensor([10, 11, 12, 13, 14])
    rule, row_loss = RULES[name]

    def rows_of(z1, z2, z3):
        for i in range(5):
            of_second = [loops.similarity(z1[i], z2[j]) for j in range(5) if ids[j] != ids[i]]
            yield loops.similarity(z1[i], z2[i]), of_second + [loops.similarity(z1[i], z3[j]) for j in range(5)]

    value, gradients = by_loop(rows_of, row_loss, z)
    loss = InfoNCELoss(rule(), detach_temperature=name != "temo", blockwise=form)
    found = loss(*z, ids=(ids, ids, others))
    assert_same([found, *torch.autograd.grad(found, z)], [value, *gradients])


@EVERY_RULE
def test_a_row_without_negatives_costs_nothing(name):
    z = views(3, 4)
    ids = torch.tensor([7, 7, 7])
    rule, _ = RULES[name]
    for form in (False, True):
        value = InfoNCELoss(rule(), blockwise=form)(*z, ids=(ids, ids))
        assert value.item() == 0
        assert all(torch.equal(g, torch.zeros_like(g)) for g in torch.autograd.grad(value, z))


@EVERY_RULE
def test_a_queue_takes_any_rule(name):
    torch.manual_seed(0)
    z = views(4, 3)
    rule, row_loss = RULES[name]
    loss = QueueInfoNCELoss(rule(), queue_size=5, dim=3, detach_temperature=name != "temo").double().eval()
    rows = [
        (loops.similarity(q, k.detach()), [loops.similarity(q, old) for old in loss.queue])
        for q, k in zip(*z, strict=True)
    ]
    value = loops.mean([row_loss(*row) for row in rows])
    (expected,) = torch.autograd.grad(value, z[:1])
    found = loss(*z)
    assert_same([found, *torch.autograd.grad(found, z[:1])], [value, expected], 1e-6)  # the queue's norms are of fp32


# ---- what the similarity log sees ----------------------------------------------------------------------------------


def watched(loss, z, **options):
    seen = []
    loss.observer = lambda *batch: seen.append(pair_sums(*batch, loss.temperature, loss.detach_temperature, 0.3))
    loss(*z, **options)
    return seen[0]


@BOTH
@EVERY_RULE
def test_the_log_sees_the_gradients_of_the_negatives(name, objective):
    rule, row_loss = RULES[name]
    loss, rows_of = OBJECTIVES[objective]
    z = views(7, 3)
    rows = [(pos.detach(), [s.detach().requires_grad_() for s in negs]) for pos, negs in rows_of(*z)]
    value = loops.mean([row_loss(*row) for row in rows])
    negatives = [s for _, negs in rows for s in negs]
    found = torch.autograd.grad(value, negatives, allow_unused=True)  # None where a bound holds
    sizes = [0.0 if g is None else abs(g.item()) for g in found]
    sums = watched(loss(rule(), detach_temperature=name != "temo"), z)
    high = sum(size for size, s in zip(sizes, negatives, strict=True) if s > 0.3)
    assert sums.counts[1] == len(negatives)
    assert sums.gradients.tolist() == pytest.approx([sum(sizes), high])


def test_the_log_sees_temperatures_of_samples():
    rule = of_six_samples()
    rule.taus.copy_(torch.linspace(0.1, 0.6, 6))
    samples = torch.tensor([5, 0, 3, 1])
    taus = rule.taus[samples]  # the step changes them
    sums = watched(NTXentLoss(rule), views(4, 3), samples=samples)
    assert sums.temperatures[0].item() == pytest.approx(taus.sum().item())  # one a positive pair
    assert sums.temperatures[1].item() == pytest.approx(2 * 6 * taus.sum().item())  # six negatives a row, two rows each


# ---- robust temperatures -------------------------------------------------------------------------------------------


@BOTH
@FORMS
def test_the_gradient_of_the_robust_temperature_is_rho_less_the_divergence(objective, form):
    z = views(7, 3)
    loss, rows_of = OBJECTIVES[objective]
    rule = RobustTemperature(effective_negatives=2.5, tau=0.2).double()
    rows = rows_of(*z)
    rho = math.log(len(rows[0][1]) / 2.5)
    tau = rule.tau.detach().clone().requires_grad_()
    bound = loops.mean([loops.robust(pos.detach(), [s.detach() for s in negs], tau, rho) for pos, negs in rows])
    (expected,) = torch.autograd.grad(bound, tau)
    divergence = loops.mean([loops.robust_kl([s.detach() for s in negs], tau.detach()) for _, negs in rows])
    value = loss(rule, blockwise=form)(*z)
    (found, *of_views) = torch.autograd.grad(value, [rule.tau, *z])
    assert float(found) == pytest.approx(float(expected), rel=1e-9)
    assert float(found) == pytest.approx(rho - float(divergence), rel=1e-9)
    plain = loss(float(rule.tau.detach()), blockwise=form)(*z)  # the objective does not see that it is learned
    assert_same([value, *of_views], [plain, *torch.autograd.grad(plain, z)], 1e-7)


def test_the_robust_temperature_reaches_the_effective_number():
    z = [x.detach() for x in views(40, 8)]
    rule = RobustTemperature(effective_negatives=6.0, tau=0.5)
    loss = InfoNCELoss(rule)
    optimizer = torch.optim.SGD([rule.tau], lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        loss(*z).backward()
        optimizer.step()
    tau = rule.tau.detach().double()
    entropies = [math.log(39) - float(loops.robust_kl(negs, tau)) for _, negs in loops.simcse_rows(*z)]
    assert math.exp(sum(entropies) / 40) == pytest.approx(6.0, rel=1e-3)


def test_more_effective_negatives_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="effective_negatives is 40, and an anchor of this batch has 6 negatives"):
        InfoNCELoss(RobustTemperature(40))(*views(7, 3))


class DecoupledInfoNCE(InfoNCELoss):
    """DCL on the rows of one view."""

    def row_loss(self, rows, z1, z2):
        return decoupled_rows(rows)


SETTINGS = {"rho": 0.4, "tau_min": 0.05, "tau_max": 1.0, "gamma": 0.8}
STATES = ("taus", "averages", "speeds")


def replay(both_views, steps, dim=3):
    """Batches, the loops' gradients of each, and the loops' state at the end."""
    state = loops.Isogclr(tau_init=0.1, eta=0.03, beta_u=0.5, clip=3.0, relative=True, **SETTINGS)
    batches, gradients = [], []
    for seed, samples in enumerate(steps):
        z = views(len(samples), dim, seed=seed)
        rows = (loops.simclr_rows if both_views else loops.simcse_rows)(*z)
        losses = state.step(samples * (2 if both_views else 1), rows)
        gradients.append(torch.autograd.grad(loops.mean(losses), z))
        batches.append((z, torch.tensor(samples)))
    return batches, gradients, state


def of_six_samples():
    rule = SampleTemperature(0.1, **SETTINGS)
    rule.set_samples(6)
    rule.double().taus.fill_(0.1)  # not what fp32 makes of it
    return rule


STEPS = ([0, 3, 5, 1], [5, 2, 0, 3], [0, 1, 5, 2])


def check_state(rule, state):
    expected = [state.tau, {k: math.log(v) for k, v in state.average.items()}, state.momentum]
    for name, values in zip(STATES, expected, strict=True):
        found = getattr(rule, name)
        for sample, value in values.items():
            assert float(found[sample]) == pytest.approx(value, rel=1e-9), (name, sample)
    assert rule.taus[4] == 0.1  # never seen
    assert rule.averages[4].isnan()


@pytest.mark.parametrize("both_views", [False, True])
@FORMS
def test_a_temperature_a_sample_is_the_published_update(both_views, form):
    batches, gradients, state = replay(both_views, STEPS)
    rule = of_six_samples()
    loss = (DCLLoss if both_views else DecoupledInfoNCE)(rule, blockwise=form)
    for (z, samples), expected in zip(batches, gradients, strict=True):
        assert_same(torch.autograd.grad(loss(*z, samples=samples), z), expected)
    check_state(rule, state)
    again = of_six_samples()
    again.load_state_dict(rule.state_dict())  # what a checkpoint holds
    check_state(again, state)


def test_processes_share_the_temperatures_of_the_samples():
    batches, gradients, state = replay(False, STEPS)
    rules = [of_six_samples() for _ in range(2)]
    for (z, samples), expected in zip(batches, gradients, strict=True):

        def work(gather, z=z, samples=samples):
            mine = [own(x, gather.rank, 2) for x in (*z, samples)]
            return DecoupledInfoNCE(rules[gather.rank], gather=gather)(*mine[:2], samples=mine[2])

        value = torch.stack(in_threads(2, work)).mean()
        assert_same(torch.autograd.grad(value, z), expected)
    for one in rules:
        check_state(one, state)


def test_evaluation_leaves_the_temperatures_of_the_samples():
    rule = SampleTemperature()
    rule.set_samples(9)
    before = copy.deepcopy(rule.state_dict())
    InfoNCELoss(rule).eval()(*(z.float() for z in views(4, 3)), samples=torch.arange(4))
    for name, value in rule.state_dict().items():
        assert torch.equal(value.nan_to_num(-9), before[name].nan_to_num(-9))


def test_a_temperature_a_sample_needs_the_samples():
    rule = SampleTemperature()
    rule.set_samples(9)
    with pytest.raises(ValueError, match=r"SampleTemperature needs samples=, the numbers \(4,\)"):
        InfoNCELoss(rule)(*views(4, 3))
    with pytest.raises(ValueError, match="does not go with a queue"):
        QueueInfoNCELoss(rule)


# ---- what a rule refuses and says ----------------------------------------------------------------------------------


def test_focal_warns_where_its_logit_falls():
    with pytest.warns(UserWarning, match=r"between s = -1.00 and -0.15"):
        FocalRule(0.05, 0.3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DebiasedRule(0.5, 1.0), r"tau_plus must lie in \[0, 1\), got 1.0"),
        (lambda: HardNegativeRule(0.5, -1.0), r"beta must lie in \[0, inf\), got -1.0"),
        (lambda: FocalRule(0.05, 3.0), r"margin must lie in \[-2, 2\), got 3.0"),
        (lambda: ADNCERule(0.07, math.nan), "mu must be a finite number"),
        (lambda: ADNCERule(0.07, 0.4, 0.0), "sigma must be a positive number"),
        (lambda: HardnessRule(0.05, -1.0), r"hardness_strength must lie in \[0, inf\)"),
        (lambda: HardnessRule(RobustTemperature()), "HardnessRule cannot wrap RobustTemperature"),
        (lambda: HardnessRule(HardnessRule()), "HardnessRule cannot wrap HardnessRule"),
        (lambda: RINCELoss(0.1, q=0.0), r"q must lie in \(0, 1\], got 0.0"),
        (lambda: RINCELoss(0.1, lam=0.0), "lam must be a positive number"),
        (lambda: SigLIPLoss(0.0), "logit_scale must be a positive number"),
        (lambda: SigLIPLoss(1.0, math.inf), "logit_bias must be a finite number"),
        (lambda: RobustTemperature(0.5), "effective_negatives must be at least 1"),
        (lambda: RobustTemperature(5, tau=2.0), "tau must lie between tau_min and tau_max"),
        (lambda: SampleTemperature(0.01), r"tau must lie in \[tau_min, tau_max\]"),
        (lambda: SampleTemperature(gamma=0.0), "gamma must be positive and at most 1, got 0.0"),
        (lambda: PiecewiseLinearTemperature(["0:0.1"]), "knots must be at least two"),
        (lambda: PiecewiseLinearTemperature(["0.5:0.1", "0:0.1"]), "their similarities rising"),
        (lambda: PiecewiseLinearTemperature(["0:0.1", "0.5:0"]), "knots must be a positive, finite number"),
        (lambda: PiecewiseLinearTemperature(["0:0.1", "0.5"]), "knots must be pairs such as 0.4:0.05, got '0.5'"),
        (lambda: TeMoTemperature(0.0), "tau_0 must be a positive, finite number"),
        (lambda: TeMoTemperature(0.01, -0.1), "alpha must be at least 0"),
    ],
)
def test_bad_settings_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_broken_line_is_numpys_interpolation():
    places, taus = [-0.5, 0.0, 0.3, 0.4, 0.8, 1.0], [0.1, 0.05, 0.05, 0.08, 0.2, 0.15]
    grid = torch.linspace(-1.1, 1.1, 1001, dtype=torch.float64)
    found = quiet(PiecewiseLinearTemperature, list(zip(places, taus, strict=True)))(grid)
    np.testing.assert_allclose(found.numpy(), np.interp(grid.numpy(), places, taus), rtol=1e-12)
    constant = PiecewiseLinearTemperature(["-1:0.07", "1:0.07"])(grid)
    assert torch.equal(constant, torch.full_like(grid, 0.07))


def test_the_new_temperatures_are_known_by_name():
    for name, kind in (("robust", RobustTemperature), ("isogclr", SampleTemperature), ("temo", TeMoTemperature)):
        assert type(make_temperature(name)) is kind
