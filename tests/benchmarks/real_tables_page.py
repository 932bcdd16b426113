"""The page of the docs on real tables and embeddings, made from figures that are kept.

    python tests/benchmarks/real_tables_page.py
    PYTHONPATH=FOLDER python tests/benchmarks/real_tables_page.py results.jsonl COMMIT [--rows 500]

Without arguments it writes docs/real-tables.md from real_tables.json and readme.json. With results
of `real_tables.py`, the commit that they were measured at and options of that run, it keeps them in
real_tables.json first. A loss on the page needs a reason in that file, which somebody writes after
a look at the table; those that are missing are printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
FILE, PAGE = HERE / "real_tables.json", HERE.parents[1] / "docs" / "real-tables.md"
TEMPLATE = HERE / "real_tables_page.md"
REFERENCE, PROTOTYPES = "scikit-learn, z-scores", "k-prototypes, mixed"
HALVES = ("tuning", "held back")
COMMAND = "python tests/benchmarks/real_tables.py run results.jsonl"
TIE, WORST = 0.02, 10
# Names of methods in the results and on the page, by the kind of what they are given.
WITH_NUMBER = {
    "KMeans, auto": "`KMeans`",
    "PowerKMeans, auto": "`PowerKMeans`",
    "EntropyPowerKMeans": "`EntropyPowerKMeans`",
    "KernelPowerKMeans": "`KernelPowerKMeans`",
    "GaussianMixture, z-scores": "`GaussianMixture`, z-scores",
}
WITHOUT = {"WeightedBlurringMeanShift": "`WeightedBlurringMeanShift`"}
MIXED = {
    "KMeans, mixed": '`KMeans`, `distortion="mixed"`',
    "EntropyPowerKMeans, mixed": '`EntropyPowerKMeans`, `distortion="mixed"`',
}
PEERS = {
    REFERENCE: "scikit-learn `KMeans`, z-scores",
    "scikit-learn, raw": "scikit-learn `KMeans`, raw",
    "Gaussian mixture, z-scores": "scikit-learn `GaussianMixture`, z-scores",
    "Gaussian mixture, z-scores, BIC": "scikit-learn `GaussianMixture`, z-scores, BIC",
    "spectral, z-scores": "scikit-learn `SpectralClustering`, z-scores",
    "HDBSCAN, z-scores": "scikit-learn `HDBSCAN`, z-scores",
    PROTOTYPES: "k-prototypes of kmodes",
}
# Losses are listed by kind: a reason for one estimator is often one for all of its kind.
KINDS = {"with the number": WITH_NUMBER, "without": WITHOUT, "mixed": MIXED}
NAMES = {**WITH_NUMBER, **WITHOUT, **MIXED, **PEERS}


def kept() -> dict:
    """Return the kept results and the reasons of losses."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def keep(results: Path, commit: str, *options: str) -> None:
    """Keep the results of the methods on the page, rounded, beside those that are kept already."""
    # Both lie beside this script, which tests import as a part of a package.
    from _tables import half_of
    from readme import machine

    old = kept() if FILE.exists() else {"tables": {}, "methods": {}, "reasons": {}}
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line["method"] in NAMES]
    tables, methods = old["tables"], old["methods"]
    for line in lines:
        if line["method"] == REFERENCE:
            described = {key: line[key] for key in ("rows", "features", "classes")}
            tables[line["table"]] = {"half": half_of(line["table"]), **described}
    command = " ".join([COMMAND, *options])
    for method in {line["method"] for line in lines}:
        own = [line for line in lines if line["method"] == method]
        rows = max(line["rows"] for line in own)
        source = {"commit": commit, "machine": machine(), "command": command}
        found = {line["table"]: [round(line["nmi"], 3), round(line["ari"], 3)] for line in own}
        methods[method] = {**source, "rows": rows, "scores": dict(sorted(found.items()))}
    all_of = {
        "tables": dict(sorted(tables.items())),
        "methods": {method: methods[method] for method in NAMES if method in methods},
        "reasons": {},
    }
    listed = [f"{kind}: {name}" for kind in KINDS for name, _ in losses(all_of, kind)]
    all_of["reasons"] = {key: old["reasons"].get(key, "") for key in listed}
    FILE.write_text(_one_line_each(all_of), encoding="utf-8")
    print("without a reason:", [key for key, reason in all_of["reasons"].items() if not reason])


def _one_line_each(all_of: dict) -> str:
    """Return JSON with one line for each table and each reason."""
    parts = []
    for key, value in all_of.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, dict):
            lines = [
                f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items()
            ]
            text = "{\n" + ",\n".join(lines) + "\n }"
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def scores(all_of: dict, method: str, score: str = "nmi") -> dict[str, float]:
    """Return the score of a method on each table that it was given."""
    found = all_of["methods"].get(method, {"scores": {}})["scores"]
    return {name: values[("nmi", "ari").index(score)] for name, values in found.items()}


def losses(all_of: dict, kind: str) -> list[tuple[str, list[float | None]]]:
    """Return the worst ten tables of each method of a kind, with the difference of each method."""
    reference = scores(all_of, REFERENCE)
    differences = []
    for method in KINDS[kind]:
        own = scores(all_of, method)
        differences.append({name: value - reference[name] for name, value in own.items()})
    listed = set()
    for own in differences:
        worst = sorted(own, key=lambda name: own[name])[:WORST]
        listed |= {name for name in worst if own[name] < -TIE}
    rows = [(name, [own.get(name) for own in differences]) for name in listed]
    return sorted(rows, key=lambda row: (min(x for x in row[1] if x is not None), row[0]))


def page() -> str:
    """Return the page."""
    all_of = kept()
    tables, held = len(all_of["tables"]), len(_half(all_of, HALVES[1]))
    embeddings = json.loads((HERE / "readme.json").read_text(encoding="utf-8"))["embeddings"]
    lines = ((one["what"], *one["cells"]) for one in embeddings["rows"])
    blocks = {
        "tables": str(tables),
        "tuning": str(tables - held),
        "held": str(held),
        "scores": _table(_summary_rows(all_of, [*WITH_NUMBER, *WITHOUT, *[*PEERS][:-1]])),
        "sources": "\n".join(_sources(all_of)),
        "verdict": "\n".join(_verdict(all_of)),
        "mixed": _table(_summary_rows(all_of, [*MIXED, REFERENCE, PROTOTYPES], ["KMeans, mixed"])),
        "embeddings": _table([embeddings["head"], *lines]),
        "embeddings source": "Commit {commit}, {machine}: `{command}`.".format_map(embeddings),
        **{f"losses {kind}": _table(_loss_rows(all_of, kind)) for kind in KINDS},
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, block in blocks.items():
        text = text.replace(f"[[{name}]]", block)
    return text


def _sources(all_of: dict) -> Iterator[str]:
    """Say at which commit, where and how methods were measured."""
    names: dict[str, list[str]] = {}
    for method, own in all_of["methods"].items():
        source = "Commit {commit}, {machine}, `{command}`".format_map(own)
        names.setdefault(source, []).append(f"{NAMES[method]} ({own['rows']:,})")
    for source, measured in names.items():
        yield f"- {source}: {'; '.join(measured)}."


def _verdict(all_of: dict) -> Iterator[str]:
    """Say of each of our estimators which peers have a higher mean on the held-back tables."""
    for method in (*WITH_NUMBER, *WITHOUT):
        own, ahead = scores(all_of, method), []
        for peer in [name for name in PEERS if name != PROTOTYPES]:
            other = scores(all_of, peer)
            names = [x for x in _half(all_of, HALVES[1]) if x in own and x in other]
            if _mean(other, names) > _mean(own, names):
                ahead.append(f"{NAMES[peer]} ({_mean(own, names)} against {_mean(other, names)})")
        if ahead:
            yield f"- {NAMES[method]} is behind {'; '.join(ahead)}."


def _half(all_of: dict, half: str) -> list[str]:
    return [name for name, table in all_of["tables"].items() if table["half"] == half]


def _summary_rows(
    all_of: dict, methods: Iterable[str], among: Iterable[str] = (REFERENCE,)
) -> list[Sequence[str]]:
    """Return a row per method, over the tables on which all of `among` have results."""
    known = set.intersection(*({*scores(all_of, method)} for method in among))
    head = [f"{half}: NMI | ARI | more, equal, less" for half in HALVES]
    rows = [("method", "tables", *" | ".join(head).split(" | "))]
    reference = scores(all_of, REFERENCE)
    for method in [method for method in methods if method in all_of["methods"]]:
        nmi, ari = scores(all_of, method), scores(all_of, method, "ari")
        cells, counts = [], []
        for half in HALVES:
            names = [name for name in _half(all_of, half) if name in nmi and name in known]
            beside = [nmi[name] - reference[name] for name in names]
            more, less = sum(x > TIE for x in beside), sum(x < -TIE for x in beside)
            cells += [f"{_mean(nmi, names)} ({_mean(reference, names)})", _mean(ari, names)]
            cells.append(f"{more}, {len(names) - more - less}, {less}")
            counts.append(str(len(names)))
        rows.append((NAMES[method], ", ".join(counts), *cells))
    return rows


def _mean(values: dict[str, float], names: list[str]) -> str:
    found = [values[name] for name in names if name in values]
    return _short(sum(found) / len(found)) if found else ""


def _short(value: float, sign: bool = False) -> str:
    text = f"{abs(value):.2f}" if sign else f"{value:.3f}"
    return ("−" if value < 0 else "+" if sign else "") + text.lstrip("-").removeprefix("0")


def _loss_rows(all_of: dict, kind: str) -> list[Sequence[str]]:
    rows = [("table (rows, features, classes)", *KINDS[kind].values(), "why")]
    for name, differences in losses(all_of, kind):
        table = all_of["tables"][name]
        described = f"{name} ({table['rows']:,}, {table['features']}, {table['classes']})"
        cells = ["" if x is None else _short(x, sign=True) for x in differences]
        rows.append((described, *cells, all_of["reasons"][f"{kind}: {name}"]))
    return rows


def _table(rows: list[Sequence[str]]) -> str:
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *others]).replace("|  |", "| |")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        keep(Path(sys.argv[1]), *sys.argv[2:])
    PAGE.write_text(page(), encoding="utf-8")
