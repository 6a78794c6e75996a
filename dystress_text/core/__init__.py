"""The loss core that text and vision share: temperatures, objectives, gathering, geometry. Needs torch alone."""

from dystress_text.core.gather import Gather, LocalGather, ProcessGather
from dystress_text.core.geometry import (
    SimilarityHistograms,
    alignment,
    interclass_uniformity,
    similarity_histograms,
    tolerance,
    uniformity,
)
from dystress_text.core.learnable import LearnableTemperature
from dystress_text.core.objectives import (
    ContrastiveLoss,
    DCLLoss,
    DCLWLoss,
    InfoNCELoss,
    MACLLoss,
    NTXentLoss,
    QueueInfoNCELoss,
)
from dystress_text.core.registry import Temperature, make_temperature, register_temperature
from dystress_text.core.temperature import (
    AlignmentAdaptiveTemperature,
    ConstantTemperature,
    CosineTemperature,
    EvenODETemperature,
    ExponentialTemperature,
    LinearTemperature,
    MonotonicCosineTemperature,
    OneSidedCosineTemperature,
    ProfileTemperature,
    ScheduledTemperature,
    ShiftedCosineTemperature,
    TemperatureError,
    ode_temperature,
)

__all__ = [
    "AlignmentAdaptiveTemperature",
    "ConstantTemperature",
    "ContrastiveLoss",
    "CosineTemperature",
    "DCLLoss",
    "DCLWLoss",
    "EvenODETemperature",
    "ExponentialTemperature",
    "Gather",
    "InfoNCELoss",
    "LearnableTemperature",
    "LinearTemperature",
    "LocalGather",
    "MACLLoss",
    "MonotonicCosineTemperature",
    "NTXentLoss",
    "OneSidedCosineTemperature",
    "ProcessGather",
    "ProfileTemperature",
    "QueueInfoNCELoss",
    "ScheduledTemperature",
    "ShiftedCosineTemperature",
    "SimilarityHistograms",
    "Temperature",
    "TemperatureError",
    "alignment",
    "interclass_uniformity",
    "make_temperature",
    "ode_temperature",
    "register_temperature",
    "similarity_histograms",
    "tolerance",
    "uniformity",
]
