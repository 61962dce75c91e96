"""NEO's scheduling policy (Jiang et al., MLSys 2025), as its published code decides.

Written from a description of that code's behaviour; its decisions are held to recorded ones of the
original, step by step. It is a baseline: nothing here is meant to be improved.
"""

from dualpace.scheduling.baselines.neo.config import NeoConfig
from dualpace.scheduling.baselines.neo.plan import NeoBatch, NeoPlan
from dualpace.scheduling.baselines.neo.predictor import NeoPredictor, NeoTables
from dualpace.scheduling.baselines.neo.scheduler import NeoScheduler

__all__ = ["NeoBatch", "NeoConfig", "NeoPlan", "NeoPredictor", "NeoScheduler", "NeoTables"]
