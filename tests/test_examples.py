"""The examples run, each in less than two minutes of a processor."""

from __future__ import annotations

import importlib
import inspect
import math
import re
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PART = 10  # an example is run at a tenth of its length, which takes at least a tenth of its time


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # that so few draws cannot be trusted
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it prints are numbers, and its only file is the one it was asked for."""
    picture = tmp_path / "filled.png"
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [name, *([str(picture)] if name == "inpainting" else [])])
    monkeypatch.chdir(tmp_path)
    main = importlib.import_module(name).main
    lengths = {key: value.default // PART for key, value in inspect.signature(main).parameters.items()}
    began = time.process_time()
    main(**lengths)
    assert PART * (time.process_time() - began) < 120
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+|nan|inf", capsys.readouterr().out)]
    assert numbers and all(map(math.isfinite, numbers))
    assert list(tmp_path.iterdir()) == ([picture] if name == "inpainting" else [])
