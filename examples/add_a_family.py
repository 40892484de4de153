"""A recurrence of your own: one unit, one composer, one row. Here the step shrinks with depth, s_t = s / (1 + t/τ).

python examples/add_a_family.py --steps 200
"""

import argparse

import torch

from scse import LoopedLM, deviation_map, family, model_config, register
from scse.recurrence import Recurrence
from scse.recurrence.anchors import LearnedAnchor, ProjectedStart
from scse.recurrence.coordinates import Deviation
from scse.recurrence.modifiers import FixedScale
from scse.recurrence.updates import Direct, SharedCore

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=0, help="train it for this many steps as well")
parser.add_argument("--out", default="runs/cooling")
args = parser.parse_args()


# %% The unit. It looks at t, and says so: then its sequences move in step wherever depths are mixed.
class CoolingUpdate(Direct):
    """u = B(x_t(z)) / (1 + t/τ)"""

    step_dependent = True

    def __init__(self, tau):
        super().__init__()
        self.tau = tau

    def forward(self, core, drive, t, z, frame, memory=None):
        x, update = super().forward(core, drive, t, z, frame, memory)
        return x, update / (1 + t / self.tau)


# %% The composer: its docstring is the equation, its keyword arguments are the options.
def cooling(shape, *, step_scale: float = 0.5, tau: float = 8.0):
    """Δ' = Δ + s/(1 + t/τ)·G(Δ)"""
    return Recurrence(
        SharedCore(shape),
        Deviation(),
        start=ProjectedStart(shape),
        anchor=LearnedAnchor(shape),
        gain=FixedScale(step_scale),
        update=CoolingUpdate(tau),
    )


register(family("scse-cooling", cooling, "SCSE with a cooling step"))

# %% Everything works on it now: counting, saving, training, caching, diagnostics.
model = LoopedLM(model_config("scse-cooling", "mini")).eval()
ids = torch.randint(0, 4096, (2, 16))
frame = model.recurrence.begin(model.embed(ids))
forcing = deviation_map(model.recurrence, 3, torch.zeros_like(frame.embedding), frame)
print(
    f"forcing at the anchor: {float(forcing.detach().abs().max())} (claimed zero: {model.recurrence.zero_preserving})"
)

if args.steps:
    from scse.config import assemble, protocol
    from scse.training.trainer import train

    train(assemble("scse-cooling", {**protocol("mini"), "steps": args.steps}), args.out)
