"""The shared block and its parts: normalisation, causal attention, SwiGLU."""

from scse.nn.block import Block
from scse.nn.norm import RMSNorm, rms_normalise

__all__ = ["Block", "RMSNorm", "rms_normalise"]
