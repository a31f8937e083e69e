"""Train a variational autoencoder whose posterior is refined by Hamiltonian Monte Carlo.

    python train.py                                   the bundled digits, two stages, a few minutes
    python train.py --config configs/hmcvi-mnist.yaml data.root=~/data chain.num_hmc=5
    python train.py --resume runs/20260101-120000     go on after an interruption, bit for bit
    python train.py seeds=0,1,2 name=digits           a run for each seed, and the spread over them
    tensorboard --logdir runs                         watch
    torchrun --nproc-per-node 4 train.py ...          share every batch among four processes

This is `hmcvi train`, which a wheel has too.  `Run.train` in hmcvi/training/run.py is the story of a run:
data, model, stages, summary.
"""

import sys

from hmcvi.commands.train import main

if __name__ == "__main__":
    sys.exit(main())
