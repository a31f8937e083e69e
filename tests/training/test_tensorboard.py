"""A real TensorBoard server shows the documented tags."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import ROOT


@pytest.fixture(scope="module")
def server(finished: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(finished.parent)]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port), "--load_fast", "false"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for_data(address, process)
        yield address
    finally:
        process.terminate()
        process.wait(10)


def _get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}/data/{path}", timeout=10) as response:
        return json.load(response)


def _wait_for_data(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert process.poll() is None
        try:
            if "bound/train" in _get(address, "plugin/scalars/tags").get("run", {}):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.2)
    raise TimeoutError("TensorBoard did not load the run")


def documented(kind: str) -> set[str]:
    """Tags in the table of docs/training.md."""
    text = (ROOT / "docs" / "training.md").read_text()
    rows = re.findall(r"^\| `([\w/]+)` \| (\w+) \|", text, re.MULTILINE)
    return {tag for tag, what in rows if what == kind}


# what only other chains than this run's report
ELSEWHERE = {
    "parts/flow", "parts/annealing", "chain/temperature", "histograms/temperature",
    "histograms/step_size", "histograms/mass",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scalars", "histograms", "images"])
def test_documented_tags_are_there(server: str, kind: str) -> None:
    tags = set(_get(server, f"plugin/{kind}/tags")["run"])
    expected = documented(kind) - ELSEWHERE
    assert expected
    assert tags == expected


@pytest.mark.slow
def test_curves_have_a_point_for_every_epoch(server: str) -> None:
    query = urllib.parse.urlencode({"run": "run", "tag": "bound/train"})
    points = _get(server, f"plugin/scalars/scalars?{query}")
    assert [step for _, step, _ in points] == [1, 2, 3, 4]


@pytest.mark.slow
def test_hparams_tab_compares_runs(server: str) -> None:
    request = urllib.request.Request(
        f"{server}/data/plugin/hparams/experiment",
        data=json.dumps({"experimentName": "", "hparamsLimit": 1000}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        experiment = json.load(response)
    assert "chain.num_hmc" in {info["name"] for info in experiment["hparamInfos"]}
    assert {"test/bound", "test/nll"} <= {info["name"]["tag"] for info in experiment["metricInfos"]}


def test_manifold_picture(tmp_path: Path) -> None:
    """For two latents, the decoded quantiles: left to right along z₁, bottom to top along z₂."""
    import torch

    from hmcvi.models import VAE
    from hmcvi.training import pictures

    class Coordinates(torch.nn.Linear):
        """logits (z₁, z₂)"""

        def __init__(self) -> None:
            super().__init__(2, 2, bias=False)
            self.weight.data = torch.eye(2)

    model = VAE(2, 2, decoder=Coordinates())
    picture = pictures.manifold(model, (1, 2), side=3)[0]
    tile = pictures.LEAST_SIDE + 1, 2 * pictures.LEAST_SIDE + 1
    corners = picture[:: tile[0]], picture[:, :: tile[1]]
    first_pixel = corners[0][:, :: tile[1]]
    second_pixel = corners[0][:, pictures.LEAST_SIDE :: tile[1]]
    assert (first_pixel.diff(dim=1) > 0).all() and (first_pixel.diff(dim=0) == 0).all()
    assert (second_pixel.diff(dim=0) < 0).all() and (second_pixel.diff(dim=1) == 0).all()
