"""The names of the precisions in which matrix products are formed."""

from __future__ import annotations

TRAINING = ("auto", "float32", "bfloat16")
INFERENCE = ("float32", "bfloat16", "int8")
SERVING = ("float32", "int8")  # where a row's answer does not depend on the other rows of its batch
EXACT = "float32"  # what records do not mention
BFLOAT16 = "bfloat16"
INT8 = "int8"
