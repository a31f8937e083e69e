"""One thread for each worker: two thread pools on two cores would slow each other down tenfold."""

import os

import torch

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)
