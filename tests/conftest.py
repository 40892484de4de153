"""Fixtures shared by all tests."""

from __future__ import annotations

import pytest
import torch

from tinymodels import NAMES


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(params=NAMES)
def family(request) -> str:
    return request.param
