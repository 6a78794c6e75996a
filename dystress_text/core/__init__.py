"""The loss core that text and vision share: temperatures, objectives, gathering, geometry. Needs
torch alone.
"""

from dystress_text.core.gather import Gather, LocalGather, ProcessGather
from dystress_text.core.geometry import alignment, interclass_uniformity, tolerance, uniformity
from dystress_text.core.objectives import (
    ContrastiveLoss,
    DCLLoss,
    DCLWLoss,
    InfoNCELoss,
    MACLLoss,
    NTXentLoss,
    Objective,
    loss,
)
from dystress_text.core.other_losses import QueueInfoNCELoss, RINCELoss, SigLIPLoss
from dystress_text.core.registry import LossError, register
from dystress_text.core.rules import (
    ADNCERule,
    DebiasedRule,
    FocalRule,
    HardNegativeRule,
    HardnessRule,
    Rule,
)
from dystress_text.core.run_temperatures import (
    AlignmentAdaptiveTemperature,
    LearnableTemperature,
    ScheduledTemperature,
)
from dystress_text.core.temperature import (
    ConstantTemperature,
    CosineTemperature,
    EvenODETemperature,
    ExponentialTemperature,
    LinearTemperature,
    MonotonicCosineTemperature,
    OneSidedCosineTemperature,
    ProfileTemperature,
    ShiftedCosineTemperature,
    TeMoTemperature,
    Temperature,
    TemperatureError,
    ode_temperature,
)

__all__ = [
    "ADNCERule",
    "AlignmentAdaptiveTemperature",
    "ConstantTemperature",
    "ContrastiveLoss",
    "CosineTemperature",
    "DCLLoss",
    "DCLWLoss",
    "DebiasedRule",
    "EvenODETemperature",
    "ExponentialTemperature",
    "FocalRule",
    "Gather",
    "HardNegativeRule",
    "HardnessRule",
    "InfoNCELoss",
    "LearnableTemperature",
    "LinearTemperature",
    "LocalGather",
    "LossError",
    "MACLLoss",
    "MonotonicCosineTemperature",
    "NTXentLoss",
    "Objective",
    "OneSidedCosineTemperature",
    "ProcessGather",
    "ProfileTemperature",
    "QueueInfoNCELoss",
    "RINCELoss",
    "Rule",
    "ScheduledTemperature",
    "ShiftedCosineTemperature",
    "SigLIPLoss",
    "TeMoTemperature",
    "Temperature",
    "TemperatureError",
    "alignment",
    "interclass_uniformity",
    "loss",
    "ode_temperature",
    "register",
    "tolerance",
    "uniformity",
]
