"""How sampling shows itself: a bar on a terminal, silence elsewhere."""

from __future__ import annotations

import time

from tqdm import tqdm

from hmcvi.kernels.mcmc.kernel import Info, Kernel

REFRESH_SECONDS = 0.2


class Bar:
    """Progress of one stage, with acceptance, step size and divergences so far."""

    def __init__(self, name: str, total: int, shown: bool) -> None:
        hidden = None if shown and total else True  # None: unless on a terminal
        self._bar = tqdm(total=total, desc=name, disable=hidden, dynamic_ncols=True)
        self._refreshed = time.monotonic()
        self._waiting = self._diverged = 0

    def advance(self, kernel: Kernel, info: Info, count: int = 1) -> None:
        if self._bar.disable:
            return
        self._waiting += count
        if "diverged" in info:
            self._diverged += int(info["diverged"].sum())
        if (now := time.monotonic()) - self._refreshed > REFRESH_SECONDS:
            self._show(kernel, info)
            self._refreshed = now

    def _show(self, kernel: Kernel, info: Info) -> None:
        shown = {}
        if "acceptance_rate" in info:
            shown["accept"] = f"{float(info['acceptance_rate'].mean()):.2f}"
        if hasattr(kernel, "step_size"):
            shown["step"] = f"{float(kernel.step_size.mean()):.3g}"
        if "num_gradients" in info:
            shown["gradients"] = f"{float(info['num_gradients'].double().mean()):.0f}"
        if self._diverged:
            shown["diverged"] = f"{self._diverged}"
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(self._waiting)
        self._waiting = 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.update(self._waiting)
        self._bar.close()
