"""What does a trained recurrence do at its anchor, and where does the input keep pushing it?

python examples/diagnose_a_model.py runs/mine
"""

import argparse

import torch

from scse import deviation_map
from scse.diagnostics import diagnose
from scse.progress import progress
from scse.runs import open_run

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("run")
parser.add_argument("--steps", type=int, default=48)
parser.add_argument("--cache-dir")
args = parser.parse_args()
run = open_run(args.run)
tokens = run.corpus(None, None, args.cache_dir).split("test").tokens

# %% The paper's pointwise diagnostics along ordinary trajectories.
with progress("diagnosing", 2 * args.steps, "steps", enabled=False) as meter:
    rows = diagnose(run.model, tokens, args.steps, 8, 2, [0, args.steps - 1], meter)
for row in rows[:: max(1, args.steps // 8)]:
    print(f"t = {row.step:2}   R_t {row.bias_ratio:8.4f}   E_Δ {row.anchor_energy:9.4f}")

# %% By hand: everything above is written against one function, T_t(Δ; e).
length = run.model.config.shape.context
ids = torch.tensor(tokens[:length].astype("int64"))[None]
with torch.no_grad():
    frame = run.model.recurrence.begin(run.model.embed(ids))
    delta = torch.zeros_like(frame.embedding)
    for t in range(args.steps):  # started at the anchor: only forcing can move it
        delta = deviation_map(run.model.recurrence, t, delta, frame)
print(f"started at its anchor, the state is {float(delta.norm()):.4g} away after {args.steps} steps")
