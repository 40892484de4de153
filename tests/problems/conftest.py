from __future__ import annotations

import pytest
import torch
from chases import train_small


@pytest.fixture(scope="session")
def chase_run(tmp_path_factory):
    """A finished run, for those who only read it or copy it first."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("chase") / "run"
    train_small(folder)
    return folder
