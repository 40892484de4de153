"""Golden losses: ten training steps per family, so that no numerical change passes in silence.

After an intended change run `python tests/test_golden.py` to write them again, and say why in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from scse import LoopedLM, model_config
from tinymodels import NAMES, TINY, some_ids

GOLDEN = Path(__file__).with_name("golden_losses.json")


def ten_losses(family: str) -> list[float]:
    """The loss at each of ten AdamW steps in float64, depths cycling over 1…4, dropout off."""
    model = LoopedLM(model_config(family, TINY), seed=7).double().eval()
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for step in range(10):
        ids = some_ids(batch=4, length=TINY.context, seed=step)
        logits = model(ids[:, :-1], loops=1 + step % 4)
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", NAMES)
def test_ten_step_losses_are_golden(name):
    expected = json.loads(GOLDEN.read_text())[name]
    assert ten_losses(name) == pytest.approx(expected, rel=1e-8)


def test_golden_losses_tell_families_apart():
    """The numbers would not guard anything if families shared them."""
    curves = json.loads(GOLDEN.read_text())
    assert set(curves) == set(NAMES)
    # The two rows whose maps agree away from the anchor are the masked and the unmasked SC-Cond.
    distinct = {tuple(curve) for curve in curves.values()}
    assert len(distinct) == len(curves) - 1
    assert curves["sc-cond"] == curves["sc-cond-unmasked"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    GOLDEN.write_text(json.dumps({name: ten_losses(name) for name in NAMES}, indent=1) + "\n")
