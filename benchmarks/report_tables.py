"""Tables of RESULTS.md, each made of records in results/."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.measuring import Record
from benchmarks.suite import ROOT, SUITE

NOTHING = "–"
STEPS = {
    "hmcvi_vae": "plain VAE",
    "hmcvi_iwae_5": "IWAE, five samples",
    "hmcvi_hvae_12": "tempered Hamiltonian VAE, 12 leapfrogs",
    "hmcvi_3x4": "3×4 chain, eager",
    "hmcvi_3x4_compiled": "3×4 chain, `train.compile=true`",
    "hmcvi_3x4_bf16_compiled": "the same with `chain.force=bf16`",
    "hmcvi_3x4_subset_compiled": "with `chain.force=subset(392)`",
    "hmcvi_3x4_surrogate_compiled": "with `chain.force=surrogate(64)`",
    "pythae_vae": "pythae, VAE",
    "pythae_iwae_5": "pythae, IWAE, five samples",
    "pythae_hvae_12": "pythae, Hamiltonian VAE, 12 leapfrogs",
    "pythae_hvae_12_differentiated": "the same, differentiated",
}
AGAINST = {
    "hmcvi_vae": "our plain VAE",
    "pythae_hvae_12": "pythae's Hamiltonian VAE, 12 leapfrogs",
    "pythae_hvae_12_differentiated": "the same, differentiated",
}
TARGETS = {
    "decoder": "decoder posterior, 20–200–200–784",
    "logistic": "logistic regression, 1000×30",
    "normal10": "normal distribution, 10-d",
    "normal100": "normal distribution, 100-d",
}
ENGINES = {
    "compiled": "`ais` with compiled HMC",
    "eager": "`ais`, eager",
    "blackjax": "BlackJAX",
    "numpyro": "NumPyro",
}
SAMPLERS = {
    "hmcvi_compiled": "compiled",
    "hmcvi_eager": "eager",
    "numpyro": "NumPyro's NUTS",
    "blackjax_nuts": "BlackJAX's NUTS",
    "blackjax_chees": "BlackJAX's ChEES",
}
CURVES = {
    "chains": "chains",
    "latent size": "latent size",
    "leapfrogs": "leapfrogs L",
    "transitions": "transitions T",
    "data": "data N",
    "samples": "importance samples K",
}


def records(name: str) -> list[Record]:
    """Those of a part of the suite, one after the other; none if it has not been run."""
    path = ROOT / SUITE[name].file
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def number(value: float | None) -> str:
    """With three digits, or all before the point; a proper minus sign.

    >>> number(0.4671), number(-31.61), number(1948.4), number(159969.0), number(None)
    ('0.47', '−31.6', '1948', '160k', '–')
    """
    if value is None:
        return NOTHING
    size = abs(value)
    text = f"{value / 1000:.0f}k" if size >= 1e4 else f"{value:.0f}" if size >= 100 else None
    return (text or (f"{value:.1f}" if size >= 9.95 else f"{value:.2f}")).replace("-", "−")


def ranged(row: Mapping[str, Any] | None) -> str:
    """A median with its least and most.

    >>> ranged({"median": 1.0, "least": 0.5, "most": 2.0})
    '1.00 [0.50, 2.00]'
    """
    return (
        NOTHING if row is None else f"{number(row['median'])} [{number(row['least'])}, {number(row['most'])}]"
    )


def aimed(row: Mapping[str, Any] | None) -> list[str]:
    """The aim of a median and whether it is reached."""
    if row is None or "aim" not in row:
        return ["", ""]
    return [row["aim"], "yes" if row["reached"] else "no"]


def train_step() -> str:
    (record,) = records("train_step")
    rows = [
        [what, ranged(record["ms"].get(name)), ranged(limit) if limit else "", *aimed(limit)]
        for name, what in STEPS.items()
        for limit in [record["over_limit"].get(name)]
        if name in record["ms"]
    ]
    return table(["step, two threads", "ms", "of its limit", "aim", "reached"], rows)


def train_step_ratios() -> str:
    (record,) = records("train_step")
    rows = [
        [forces, what, ranged(ratio), *aimed(ratio)]
        for forces in ("full", "bf16", "subset", "surrogate")
        for ours in ["3x4_compiled" if forces == "full" else f"3x4_{forces}_compiled"]
        for name, what in AGAINST.items()
        if (ratio := record["ratios"].get(f"hmcvi_{ours}/{name}"))
    ]
    return table(["forces", "compiled 3×4 chain against", "ratio", "aim", "reached"], rows)


def kernels() -> str:
    rows = []
    for record in records("kernels"):
        if record.get("target") not in TARGETS:
            continue
        speeds, ratios = record["chain_leapfrogs_per_s"], record["ratios"]
        for ours in (name for name in ("bf16", "compiled", "eager") if f"hmcvi_{name}" in speeds):
            for peer, name in (("blackjax", "BlackJAX"), ("numpyro", "NumPyro")):
                ratio = ratios.get(f"hmcvi_{ours}/{peer}")
                place = [TARGETS[record["target"]], str(record["chains"]), str(record["threads"])]
                own, other = (speeds.get(key, {}).get("median") for key in (f"hmcvi_{ours}", peer))
                rows.append(
                    [*place, f"{ours} / {name}", number(own), number(other), ranged(ratio), *aimed(ratio)]
                )
    head = ["target", "chains", "threads", "engines", "ours", "peer", "ratio", "aim", "reached"]
    return table(head, rows)


def annealing() -> str:
    (record,) = records("annealing")
    rows = []
    for name, what in ENGINES.items():
        version = f" {record['versions'][name]}" if name in record["versions"] else ""
        speed = record["share_of_matmul_speed"].get(name)
        peers = [record["speed_over_peer"].get(f"{name}/{peer}") for peer in ("blackjax", "numpyro")]
        ratios = [ranged(ratio) if ratio else "" for ratio in (*peers, speed)]
        rows.append([what + version, ranged(record["seconds"].get(name)), *ratios, *aimed(speed)])
    head = [
        "engine",
        "s",
        "speed / BlackJAX",
        "speed / NumPyro",
        "speed, of matrix products",
        "aim",
        "reached",
    ]
    return table(head, rows)


def steady() -> str:
    rows = []
    for record in records("steady"):
        if "ess_per_s" not in record:
            continue
        speeds = [number(record["ess_per_s"].get(name, {}).get("median")) for name in SAMPLERS]
        rows.append(
            [
                record["problem"].replace("_", " "),
                *speeds,
                ranged(record["over_best"]),
                *aimed(record["over_best"]),
            ]
        )
    return table(["posterior", *SAMPLERS.values(), "compiled / best peer", "aim", "reached"], rows)


def samplers() -> str:
    *_, total = records("samplers")
    rows = [
        [what, ranged(total[key]), total["aims"][key]]
        for key, what in (
            ("time_ratio", "CPU time of a run / the fastest peer's"),
            ("ess_per_gradient_ratio", "effective draws per gradient / NumPyro's"),
        )
    ]
    names = {
        "hmcvi": "this library",
        "numpyro": "NumPyro's NUTS",
        "blackjax": "BlackJAX's NUTS",
        "blackjax_chees": "BlackJAX's ChEES",
    }
    for engine, name in names.items():
        if f"{engine}_runs" in total:
            rows.append([f"runs that converged, {name}", total[f"{engine}_runs"], ""])
    return table([f"{total['problems']} posteriors", "median [least, most] over posteriors", "aim"], rows)


def chain_memory() -> str:
    (record,) = records("chain_memory")
    rows = []
    for memory in ("store", "checkpoint", "reversible"):
        row = record[memory]
        short, long = (row["mib"][f"{memory}, T = {length}"] for length in (4, 64))
        growth, slower = row["memory_long_against_short"], row["time_against_store"]
        cells = [f"`{memory}`", ranged(short), ranged(long), _with_aim(growth)]
        rows.append([*cells, ranged(row["seconds"][f"{memory}, T = 64"]), _with_aim(slower)])
    head = ["`chain.memory`", "MiB, T = 4", "T = 64", "ratio", "s, T = 64", "of `store`"]
    return table(head, rows)


def _with_aim(row: Mapping[str, Any]) -> str:
    return ranged(row) + (f" (aim: {row['aim']})" if "aim" in row else "")


def startup() -> str:
    (record,) = records("startup")
    rows = [
        [f"`{name}`", ranged(row), *aimed(row)]
        for name, row in record["seconds"].items()
        if name != "nothing"
    ]
    return table(["", "s", "aim", "reached"], rows)


def scaling() -> str:
    curves = json.loads((ROOT / "results" / "scaling" / "result.json").read_text())
    rows = []
    for name, what in CURVES.items():
        for kind, curve in curves[name].items():
            least, *_, most = curve["sizes"]
            exponents = [number(curve[f"{of}_exponent"]) for of in ("time", "memory")]
            rows.append([f"{what}, {least} to {most:,}", kind, *exponents])
    return table(["against", "of", "time", "memory"], rows)


def pyro_bounds() -> str:
    rows = []
    for record in _bounds():
        evidence, base = record["log evidence"], record["base"]
        cells = [record["model"], "unknown" if evidence is None else _nats(evidence), _nats(base["bound"])]
        for guide in ("hamiltonian", "annealed"):
            row = record[guide]
            gain = f"{row['gain in standard errors']:.0f}"
            share = row.get("share of the gap")
            cells.append(f"{_nats(row['bound'])} ± {row['standard error']:.3f} ({gain})")
            cells.append("" if share is None else f"{100 * share:.0f} %")
        rows.append(cells)
    return table(["model", "log evidence", "base", "AutoHMC", "of the gap", "annealed", "of the gap"], rows)


def pyro_moments() -> str:
    rows = [
        [
            record["model"],
            *(f"{record[guide]['means']:.3f}, {record[guide]['log sds']:.2f}" for guide in GUIDES),
        ]
        for record in _bounds()
    ]
    return table(["model", "base", "AutoHMC", "annealed"], rows)


GUIDES = ("base", "hamiltonian", "annealed")


def _bounds() -> Iterator[Record]:
    return (record for record in records("pyro_models") if "base" in record)


def _nats(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def nodes() -> str:
    (record,) = records("nodes")
    cases = {name: row["speed_up"] for name, row in record.items() if "each" in name or "in all" in name}
    rows = [[case, name, *map(number, row[name])] for case, row in cases.items() for name in row]
    return table(["images in a batch", "network", *(str(count) for count in record["nodes"])], rows)


def constrained() -> str:
    rows = []
    for record in records("constrained"):
        engines, best = record["engines"], record["best"]
        for peer, ratio in record["ratios"].items():
            speeds = [number(engines[name]["ess_per_cpu_second"]) for name in (best, peer)]
            names = [record["model"].replace("_", " "), best.removeprefix("hmcvi, "), peer.replace("_", ", ")]
            reached = "yes" if record["reached"][peer] else "no"
            steps = ranged(record["ratios_of_transitions"][peer])
            rows.append([*names, *speeds, number(ratio), steps, f"at least {record['aim']:g}", reached])
    head = [
        "model",
        "ours",
        "peer",
        "our draws per s",
        "the peer's",
        "ratio",
        "of transitions",
        "aim",
        "reached",
    ]
    return table(head, rows or [["no record yet", *[""] * (len(head) - 1)]])


def more() -> str:
    """Parts without a table of their own: all medians in their records, or that there are none yet."""
    rows = []
    for name in ("likelihoods", "many_processes", "gp_estimate"):
        found = [row for record in records(name) for row in _medians(record)]
        command = f"`{SUITE[name].commands()[0].partition(' --json')[0]}`"
        what = SUITE[name].what
        rows += [[what, label, ranged(row), *aimed(row), command] for label, row in found]
        if not found:
            rows.append([what, "no record yet", "", "", "", command])
    return table(["what is measured", "figure", "median [least, most]", "aim", "reached", "command"], rows)


def _medians(
    record: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in record.items():
        if isinstance(value, dict) and "median" in value:
            yield ", ".join((*path, key)).replace("_", " "), value
        elif isinstance(value, dict):
            yield from _medians(value, (*path, key))


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        train_step, train_step_ratios, kernels, annealing, steady, constrained, samplers, chain_memory,
        startup, scaling, nodes, pyro_bounds, pyro_moments, more,
    )
}  # fmt: skip
