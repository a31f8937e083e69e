"""Tables of RESULTS.md, each made of records in results/."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.measuring import Record
from benchmarks.report_format import aimed, number, ranged, records, table
from benchmarks.suite import ROOT, SUITE

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
CURVES = {
    "chains": "chains",
    "latent size": "latent size",
    "leapfrogs": "leapfrogs L",
    "transitions": "transitions T",
    "data": "data N",
    "samples": "importance samples K",
}


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


TABLES = (
    train_step, train_step_ratios, kernels, annealing, constrained, chain_memory, startup, scaling, nodes,
    pyro_bounds, pyro_moments, more,
)  # fmt: skip
