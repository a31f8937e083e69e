"""Models that only the experiments need."""

from experiments.models.boltzmann import BoltzmannMachine, Relaxation
from experiments.models.logistic_regression import LogisticRegression
from experiments.models.lotka_volterra import lotka_volterra
from experiments.models.multilevel import MultilevelRegression
from experiments.models.pose import PosePrior, human_pose
from experiments.models.quantile import generalised_lambda

__all__ = [
    "BoltzmannMachine",
    "LogisticRegression",
    "MultilevelRegression",
    "PosePrior",
    "Relaxation",
    "generalised_lambda",
    "human_pose",
    "lotka_volterra",
]
