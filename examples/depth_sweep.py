"""How does the loss depend on depth, and where do the predictions settle?

python examples/depth_sweep.py runs/mine --loops 48
"""

import argparse

import torch

from scse.evaluation import perplexity_over_depths
from scse.runs import open_run

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("run")
parser.add_argument("--loops", type=int, default=48)
parser.add_argument("--windows", type=int, default=64)
parser.add_argument("--cache-dir")
args = parser.parse_args()

# %% One unroll gives every depth.
run = open_run(args.run)
tokens = run.corpus(None, None, args.cache_dir).split("test").tokens
depths = [t for t in (1, 2, 4, 8, 12, 16, 24, 32, 48, 96) if t <= args.loops]
for result in perplexity_over_depths(run.model, tokens, depths, limit=args.windows):
    print(f"T = {result.depth:3}   perplexity {result.ppl:8.2f}")

# %% After how many loops does a token's prediction stop changing? Nothing but predictions is kept.
length = run.model.config.shape.context
ids = torch.tensor(tokens[: 4 * length].astype("int64")).view(-1, length)
predictions = run.model.trajectory(ids, args.loops, keep=["predictions"]).predictions
final = predictions[-1]
settled = (predictions == final).flip(0).cumprod(0).flip(0).sum(0)  # loops in a row that already agree with the end
needed = args.loops + 1 - settled
for t in depths:
    print(f"settled after {t:3} loops: {(needed <= t).double().mean():6.1%} of the tokens")
