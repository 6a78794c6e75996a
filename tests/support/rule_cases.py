"""Rules on pairs beside their loops in `rule_loops`."""

import warnings
from functools import partial

import rule_loops as loops

from dystress_text.core import (
    ADNCERule,
    DebiasedRule,
    FocalRule,
    HardNegativeRule,
    HardnessRule,
    TeMoTemperature,
)


def quiet(build, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build(*args, **options)


# the rule, and the loop that gives the loss of a row; with temperatures at which both cases of a bound occur
RULES = {
    "debiased": (lambda: DebiasedRule(0.5, 0.1), partial(loops.debiased, tau=0.5, tau_plus=0.1)),
    "debiased, bound": (lambda: DebiasedRule(0.2, 0.2), partial(loops.debiased, tau=0.2, tau_plus=0.2)),
    "no bias": (lambda: DebiasedRule(0.2, 0.0), partial(loops.debiased, tau=0.2, tau_plus=0.0)),
    "hcl": (lambda: HardNegativeRule(0.5, 1.0, 0.1), partial(loops.hcl, tau=0.5, tau_plus=0.1, beta=1.0)),
    "hcl, sharp": (lambda: HardNegativeRule(0.2, 0.5, 0.05), partial(loops.hcl, tau=0.2, tau_plus=0.05, beta=0.5)),
    "focal": (lambda: quiet(FocalRule, 0.2, 0.3), partial(loops.focal, tau=0.2, margin=0.3)),
    "adnce": (lambda: ADNCERule(0.2, 0.4, 0.5), partial(loops.adnce, tau=0.2, mu=0.4, sigma=0.5)),
    "hardness": (lambda: HardnessRule(0.2, 3.0), partial(loops.hardness, tau=0.2, strength=3.0)),
    "temo": (lambda: TeMoTemperature(0.1, 0.2), partial(loops.temo, tau_0=0.1, alpha=0.2)),
}
