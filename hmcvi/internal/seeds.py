"""Seeds of 64 bits, and how one of them is split into many.

`split(seed, "evaluation", 7)` is the first half of SHA-256 of its arguments: streams of other seeds, other
purposes and other places have nothing in common.  Torch's generator on the CPU is a Mersenne twister that is
seeded by 32 bits, so that 0 and 2³² would give the same numbers: from seeds of more bits all of its 624 words
are filled, by SHAKE-256 of the seed.  Seeds below 2³² give the numbers they always gave.
"""

from __future__ import annotations

import hashlib
import struct

import torch

BITS_32 = 2**32
LARGEST = 2**64 - 1
WORDS, STATE_BYTES, FIRST_WORD = 624, 5056, 24  # of the state of a generator on the CPU


def split(seed: int, *path: int | str) -> int:
    """A seed of 64 bits for one of the many streams that a run needs, by its purpose and place.

    >>> split(0, "evaluation", 1) != split(0, "evaluation", 2) != split(2**32, "evaluation", 2)
    True
    """
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def generator(seed: int, *path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of this seed, or of one that is split from it.

    >>> torch.equal(generator(0).get_state(), torch.Generator().manual_seed(0).get_state())
    True
    >>> torch.equal(generator(0).get_state(), generator(2**32).get_state())
    False
    """
    seed = split(seed, *path) if path else _checked(seed)
    made = torch.Generator(device).manual_seed(seed)
    if made.device.type == "cpu" and seed >= BITS_32:
        made.set_state(_filled(made.get_state(), seed))
    return made


def seed_all(seed: int, *path: int | str) -> None:
    """Seed torch's own generators, of all devices, likewise; for programs, which own the process."""
    seed = split(seed, *path) if path else _checked(seed)
    torch.manual_seed(seed)
    if seed >= BITS_32:
        torch.set_rng_state(_filled(torch.get_rng_state(), seed))


def _checked(seed: int) -> int:
    if not 0 <= seed <= LARGEST:
        raise ValueError(f"seed must be at least 0 and below 2⁶⁴, got {seed}")
    return seed


def _filled(state: torch.Tensor, seed: int) -> torch.Tensor:
    """The state of a newly seeded generator on the CPU, its words chosen by all bits of the seed."""
    assert len(state) == STATE_BYTES, "torch's generator has another state than the one that is known"
    words = struct.unpack(f"<{WORDS}I", hashlib.shake_256(str(seed).encode()).digest(4 * WORDS))
    content = bytearray(state.numpy().tobytes())
    content[FIRST_WORD : FIRST_WORD + 8 * WORDS] = struct.pack(f"<{WORDS}Q", *words)
    return torch.frombuffer(content, dtype=torch.uint8).clone()
