"""AdamW with decay on matrices only, the learning-rate schedule, and the numeric precision of the products."""

from __future__ import annotations

import math
import os

import torch
from torch import nn

from scse.config import PRECISIONS, TrainConfig
from scse.errors import checked_choice


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up over `warmup` steps, then cosine to zero at `steps`. `step` counts from 0."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return 0.5 * config.lr * (1 + math.cos(math.pi * min(1.0, progress)))


def make_optimiser(module: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Weight decay on everything with two or more dimensions; gains, gates and norms are left alone."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        fused=True,
    )


def resolve_precision(precision: str, device: torch.device) -> str:
    """'auto' is what SCSE_PRECISION says, else bfloat16 where the hardware multiplies in it, float32 otherwise."""
    if precision == "auto":
        precision = checked_choice(
            "precision in SCSE_PRECISION", os.environ.get("SCSE_PRECISION") or "auto", PRECISIONS
        )
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if device.type != "cpu":
        return "float32"
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if native else "float32"
