"""Train a looped model on your own text, stop and continue it, and let it write.

python examples/train_your_text.py my_novel.txt --steps 2000
"""

import argparse

from scse.config import RunOptions, assemble, protocol
from scse.generation import Depth, Generation, continue_text
from scse.runs import open_run
from scse.training.trainer import train

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("text", help="a text, jsonl or parquet file, or a folder of them")
parser.add_argument("--out", default="runs/my-text")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--prompt", default="The")
args = parser.parse_args()

# %% A run is a resolved configuration and a folder. The same call again continues it, to the bit.
config = assemble("scse", {**protocol("mini"), "data": args.text, "steps": args.steps})
outcome = train(config, args.out, RunOptions(eval_every=100, checkpoint_every=100))
if not outcome.finished:
    raise SystemExit("stopped and saved; the same command continues")

# %% The depth is chosen now, not when training.
run = open_run(args.out)
for loops in (1, 4, 8, 24):
    wanted = Generation(Depth(loops), max_new_tokens=40, stop=run.tokenizer.eot_id)
    *_, (continuation,) = continue_text(run.model, run.tokenizer, args.prompt, wanted)
    print(f"T = {loops:2}: {args.prompt}{continuation.text!r}")
