"""Laws of compiled kernels are those of their source; tests/kernels/mcmc/test_compiled_hmc.py compiles it."""

import pytest
import torch


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
