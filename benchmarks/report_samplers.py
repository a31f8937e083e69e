"""Tables of RESULTS.md that compare samplers."""

from __future__ import annotations

from benchmarks.report_format import NOTHING, aimed, number, ranged, records, table

SAMPLERS = {
    "hmcvi_compiled": "compiled",
    "hmcvi_eager": "eager",
    "numpyro": "NumPyro's NUTS",
    "blackjax_nuts": "BlackJAX's NUTS",
    "blackjax_chees": "BlackJAX's ChEES",
}
ENGINES = {
    "hmcvi": "this library",
    "numpyro": "NumPyro's NUTS",
    "blackjax": "BlackJAX's NUTS",
    "blackjax_chees": "BlackJAX's ChEES",
}


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
    for engine, name in ENGINES.items():
        if f"{engine}_runs" in total:
            rows.append([f"runs that converged, {name}", total[f"{engine}_runs"], ""])
    return table([f"{total['problems']} posteriors", "median [least, most] over posteriors", "aim"], rows)


def posteriors() -> str:
    """A row for each posterior of the whole runs."""
    rows = []
    for record in records("samplers"):
        if "held_out" not in record:
            continue
        cells = []
        for engine in ENGINES:
            seconds = record.get(f"{engine}_seconds")
            cells.append(NOTHING if engine not in record else f"{number(seconds)} ({record[engine]})")
        ratios = (number(record.get(name)) for name in ("time_ratio", "ess_per_gradient_ratio"))
        rows.append([record["problem"].replace("_", " ") + " *" * record["held_out"], *cells, *ratios])
    return table(["posterior", *ENGINES.values(), "time ratio", "ESS per gradient, ratio"], rows)


TABLES = (steady, samplers, posteriors)
