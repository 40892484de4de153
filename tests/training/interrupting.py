"""Runs that are cut short, and how to compare what is left of them."""

from __future__ import annotations

import json

import torch

from runs import final_tensors
from scse.training import trainer


class Killed(BaseException):
    pass


def killed_at(monkeypatch, step):
    """Make the trainer die, as if by SIGKILL, when it is about to take `step`."""
    original = trainer.Trainer._step

    def dying(self, at, meter):
        if at == step:
            raise Killed
        return original(self, at, meter)

    monkeypatch.setattr(trainer.Trainer, "_step", dying)


def assert_same_run(left, right):
    for ours, theirs in zip(final_tensors(left), final_tensors(right), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def metric_steps(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows if "loss" in row], [row["step"] for row in rows if "validation_ppl" in row]
