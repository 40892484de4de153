"""Fine-tune an exported model with LoRA (peft): the block's four projections get adapters, shared by all loops.

scse export runs/mine exported
python examples/fine_tune_with_lora.py exported my_notes.txt --steps 100
"""

import argparse
from pathlib import Path

import peft
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import scse.hf  # noqa: F401  (teaches the Auto classes our models)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder")
parser.add_argument("text", type=Path)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--loops", type=int, default=8, help="the deepest loop to train at")
parser.add_argument("--out", default="tuned")
args = parser.parse_args()

# %%
tokenizer = AutoTokenizer.from_pretrained(args.folder)
model = AutoModelForCausalLM.from_pretrained(args.folder)
config = peft.LoraConfig(r=8, target_modules=["qkv", "out", "gate_up", "down"], task_type="CAUSAL_LM")
tuned = peft.get_peft_model(model, config)
tuned.print_trainable_parameters()

# %% Random windows of the text; the depth is drawn anew for every step, as in training from scratch.
ids = torch.tensor(tokenizer(args.text.read_text("utf-8"), verbose=False).input_ids)
length = min(model.config.max_position_embeddings, len(ids) - 1)
optimiser = torch.optim.AdamW([p for p in tuned.parameters() if p.requires_grad], lr=1e-3)
draw = torch.Generator().manual_seed(0)
tuned.train()
for step in range(1, args.steps + 1):
    starts = torch.randint(0, len(ids) - length + 1, (8,), generator=draw)
    batch = torch.stack([ids[s : s + length] for s in starts.tolist()])
    loops = int(torch.randint(1, args.loops + 1, (), generator=draw))
    loss = tuned(input_ids=batch, labels=batch, num_loops=loops).loss
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % max(1, args.steps // 10) == 0:
        print(f"step {step}: loss {float(loss.detach()):.3f} at T = {loops}")

# %% Merge the adapters; the result is an ordinary folder again.
merged = tuned.merge_and_unload()
merged.save_pretrained(args.out)
tokenizer.save_pretrained(args.out)
print(f"saved to {args.out}")
