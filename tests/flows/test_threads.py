"""Threads sleep at barriers while the machine is crowded, and spin again when it is not."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch

from hmcvi.flows import threads
from hmcvi.flows.threads import Barriers, sleeping_team, spin_at_barriers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """Seconds that passed, and seconds that this thread waited for a core; two threads."""
    now = {"passed": 0.0, "waited": 0.0}
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads.time, "monotonic", lambda: now["passed"])
    monkeypatch.setattr(threads, "_seconds_waited", lambda: now["waited"])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield now
    spin_at_barriers()
    torch.set_num_threads(before)


def test_a_crowded_machine_puts_them_to_sleep_until_it_is_free(clock: dict[str, float]) -> None:
    barriers = Barriers()
    for passed, waited, asleep in [(1, 0.0, False), (2, 0.5, True), (3, 0.55, True), (4, 0.56, False)]:
        clock["passed"], clock["waited"] = passed, waited
        barriers()
        assert (sleeping_team() is not None) == asleep


def test_there_is_one_team_however_many_ask_and_they_can_be_copied(clock: dict[str, float]) -> None:
    several = [Barriers(), Barriers()]
    clock["passed"], clock["waited"] = 1, 0.5
    for barriers in [*several, copy.deepcopy(several[0])]:
        barriers()
    teams = [thread for thread in threads.threading.enumerate() if isinstance(thread, threads.SleepingTeam)]
    assert len(teams) == 1


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_the_environment_decides(name: str, clock: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "0")
    barriers = Barriers()
    clock["passed"], clock["waited"] = 1, 0.9
    barriers()
    assert sleeping_team() is None


def test_a_single_thread_has_no_barriers(clock: dict[str, float]) -> None:
    torch.set_num_threads(1)
    barriers = Barriers()
    clock["passed"], clock["waited"] = 1, 0.9
    barriers()
    assert sleeping_team() is None
