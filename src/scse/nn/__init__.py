"""The shared block and its parts: normalisation, causal attention, SwiGLU."""

from scse.nn.block import Block, apply_layers, remember_layers
from scse.nn.norm import RMSNorm, rms_normalise

__all__ = ["Block", "RMSNorm", "apply_layers", "remember_layers", "rms_normalise"]
