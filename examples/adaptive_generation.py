"""Generate with a depth per token: easy tokens leave early, hard ones loop on.

python examples/adaptive_generation.py runs/mine --prompt "The history of"
"""

import argparse

from scse.evaluation.calibration import calibrate, trace
from scse.evaluation.rules import RULES, Stopping
from scse.generation import GREEDY, Depth, Generation, continue_text
from scse.runs import open_run

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("run")
parser.add_argument("--prompt", default="The history of")
parser.add_argument("--ceiling", type=int, default=48)
parser.add_argument("--tokens", type=int, default=32)
parser.add_argument("--cache-dir")
args = parser.parse_args()
run = open_run(args.run)

# %% A threshold for a mean budget of 8 loops per example, from validation text.
validation = run.corpus(None, None, args.cache_dir).split("validation").tokens
found = trace(run.model, validation, Stopping(RULES.find("update"), args.ceiling, batch=16, windows=32))
threshold = calibrate(found.statistics, 8)
print(f"threshold {threshold:.4f}")

# %% The same prompt at a fixed depth and with early exit per token, which stops no later than the example would.
for name, depth in (("fixed, T = 8", Depth(8)), ("early exit", Depth(args.ceiling, threshold))):
    wanted = Generation(depth, args.tokens, GREEDY, stop=run.tokenizer.eot_id)
    *_, (one,) = continue_text(run.model, run.tokenizer, args.prompt, wanted)
    print(f"\n{name}, {one.mean_loops:.1f} loops per token:\n{args.prompt}{one.text}")
    print(" ".join(f"{piece.strip() or '_'}:{loops}" for piece, loops in zip(one.pieces, one.loops, strict=True)))
