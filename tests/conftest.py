"""One thread for each worker: two thread pools on two cores would slow each other down tenfold."""

import os
import sys

import pytest
import torch

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def empty_param_store() -> None:
    """Pyro keeps parameters by name for all guides; those of the test before are not this one's."""
    if "pyro" in sys.modules:
        sys.modules["pyro"].clear_param_store()
