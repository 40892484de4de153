"""The names of the precisions in which matrix products are formed."""

from __future__ import annotations

TRAINING = ("auto", "float32", "bfloat16")
INFERENCE = ("float32", "bfloat16", "int8")
EXACT = "float32"  # what records do not mention
BFLOAT16 = "bfloat16"
INT8 = "int8"
