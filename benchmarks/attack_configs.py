"""Configurations made of whatever comes to mind: refused by one line, or a configuration that is one."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any

from benchmarks.attack_parts import Clock, Count

WORDS = [
    "inf", "-inf", ".inf", "-.inf", ".nan", "nan", "1e400", "-1", "0", "1", "2", "1e-400", "1e300", "0.5",
    "99999999999999999999999999", "1" * 5000, "true", "null", "~", "???", "${seed}", "${oc.env:HOME}",
    "${data.root}", "${", "[]", "{}", "[1,[2]]", "[0]", "[1e9]", "{a: 1}", "[null]", "'", '"', "a: b",
    "[" * 50, "{" * 3000, "&a [*a]", "*a", "!!python/object/apply:os.system [true]", "!!binary aGk=", "../x",
    "/etc/passwd", "..", "a/b", "x" * 300, "\x00", "é", "\u202e", "\ud800", "1_000", "0x10", "0o7", "1:30",
    "2001-01-01", "meta", "cuda:99999", "cpu:-1", "yes", "|", ">", "-", "?", "@", "%", "`", "\t", "\n", "<<",
    "hmc", "nn", "mnist", "[200,200]", "[1000000,1000000]", "1000000", "1e6", "-0.0", "4096",
]  # fmt: skip
YAML = ["base: base.yaml", "base: config.yaml", "base: 3", "base: [a]", "base: /dev/zero", "a: &x [1]\nb: *x"]


def attack(rng: random.Random, folder: Path, clock: Clock) -> Count:
    """Overrides and files; each must give a ConfigError of one line, or a configuration that is finite."""
    from hmcvi.training.config import Config, ConfigError, flat, load_config

    known, count, path = list(flat(Config())), Count(), folder / "config.yaml"
    while clock():
        overrides = [_override(rng, known) for _ in range(rng.choice((0, 1, 1, 1, 2, 4)))]
        in_file = rng.random() < 0.5
        if in_file:
            path.write_bytes(_file(rng, known))
        began = time.monotonic()
        tried = f"{overrides!r:.300} {path.read_bytes()[:300]!r}" if in_file else f"{overrides!r:.300}"
        try:
            config = load_config(path if in_file else None, overrides)
            bad = [name for name, value in flat(config).items() if not _is_plain(value)]
            count.add("accepted", f"accepted with {bad}: {tried}" if bad else None)
        except ConfigError as error:
            long = len(str(error)) > 3000 or str(error).count("\n") > 0
            count.add(
                "refused", f"not one line ({len(str(error))}): {error!s:.200} {tried}" if long else None
            )
        except BaseException as error:
            count.add("traceback", f"{type(error).__name__}: {error!s:.100} by {tried}")
        if (taken := time.monotonic() - began) > 5:
            count.failures.append(f"took {taken:.1f} s: {tried}")
    return count


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(_is_plain(entry) for entry in value)
    return value is None or isinstance(value, bool | int) or (isinstance(value, str) and "${" not in value)


def _override(rng: random.Random, known: list[str]) -> str:
    key = rng.choice(known)
    shape = rng.random()
    if shape < 0.1:
        key = "".join(rng.choice(".[]= abtrainlr\0é${}") for _ in range(rng.randrange(20)))
    elif shape < 0.15:
        key = key.replace(".", rng.choice(["..", "[", ".x.", ""]))
    return f"{key}{rng.choice(('=', '=', '=', '=', '', '=='))}{_value(rng)}"


def _value(rng: random.Random) -> str:
    shape = rng.random()
    if shape < 0.6:
        return rng.choice(WORDS)
    if shape < 0.75:
        return repr(rng.choice([1, -1]) * 10 ** rng.uniform(-320, 308))
    if shape < 0.9:
        return str(rng.randrange(-(10 ** rng.randrange(1, 30)), 10 ** rng.randrange(1, 30)))
    return "".join(
        chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x500)))) for _ in range(rng.randrange(30))
    )


def _file(rng: random.Random, known: list[str]) -> bytes:
    shape = rng.random()
    if shape < 0.2:
        return rng.randbytes(rng.randrange(300))
    if shape < 0.25:
        return b"a: " * rng.randrange(1, 40_000)
    lines = [rng.choice(YAML)] if rng.random() < 0.2 else []
    for _ in range(rng.randrange(1, 5)):
        section, _, name = rng.choice(known).rpartition(".")
        lines.append(f"{section}: {{{name}: {_value(rng)}}}" if section else f"{name}: {_value(rng)}")
    text = "\n".join(lines).encode(errors="surrogatepass")
    if rng.random() < 0.2 and text:
        place = rng.randrange(len(text))
        text = text[:place] + rng.randbytes(3) + text[place + 1 :]
    return text
