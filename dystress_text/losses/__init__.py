"""The losses for text and images: temperatures, objectives, reweighting, gathering, geometry.

This layer needs only torch.
"""

from dystress_text.losses.changing_temperatures import (
    AlignmentAdaptiveTemperature,
    LearnableTemperature,
    ScheduledTemperature,
)
from dystress_text.losses.gather import Gather, LocalGather, ProcessGather
from dystress_text.losses.geometry import alignment, interclass_uniformity, tolerance, uniformity
from dystress_text.losses.objectives import (
    ContrastiveLoss,
    DCLLoss,
    DCLWLoss,
    InfoNCELoss,
    MACLLoss,
    NTXentLoss,
    Objective,
    parse_loss,
)
from dystress_text.losses.other_losses import QueueInfoNCELoss, RINCELoss, SigLIPLoss
from dystress_text.losses.registry import LossError, register
from dystress_text.losses.reweighting import (
    ADNCEReweighting,
    ArctanhReweighting,
    DebiasedReweighting,
    FocalReweighting,
    HardnessReweighting,
    HCLReweighting,
    Reweighting,
)
from dystress_text.losses.temperature import (
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
)

__all__ = [
    "ADNCEReweighting",
    "AlignmentAdaptiveTemperature",
    "ArctanhReweighting",
    "ConstantTemperature",
    "ContrastiveLoss",
    "CosineTemperature",
    "DCLLoss",
    "DCLWLoss",
    "DebiasedReweighting",
    "EvenODETemperature",
    "ExponentialTemperature",
    "FocalReweighting",
    "Gather",
    "HCLReweighting",
    "HardnessReweighting",
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
    "Reweighting",
    "ScheduledTemperature",
    "ShiftedCosineTemperature",
    "SigLIPLoss",
    "TeMoTemperature",
    "Temperature",
    "TemperatureError",
    "alignment",
    "interclass_uniformity",
    "parse_loss",
    "register",
    "tolerance",
    "uniformity",
]
