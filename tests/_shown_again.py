"""Reports, plans and resumed fits of random cases; each number computed naively; see `_shown`."""

from __future__ import annotations

import re
from collections import Counter

import dask.array as da
import html5lib
import numpy as np
from _fuzz import cut
from _shown import case_of, kept_masses, own_distances, pick, plain
from sklearn.base import clone

from daskmm import EntropyPowerKMeans
from daskmm.cli.run_folder import write_run
from daskmm.report import page as html_report

HTML = "{http://www.w3.org/1999/xhtml}"
# Kinds whose reports have exact means, with or without rows.
EXACT = ("cosine", "euclidean", "manhattan")


def text_of(element):
    return " ".join("".join(element.itertext()).split())


def says(text, number, slack=0.0):
    """Whether a text is a number or a share, rounded to the digits that it has."""
    if np.isnan(number):
        return text == "–"
    part, text = 1.0, text.replace("−", "-").replace(",", "")
    if text.endswith("%"):
        part = 0.01
        if not text[0].isdigit():  # "under 0.1%", "over 99.9%"
            return min(number, 1 - number) < 0.0006
    found = re.match(r"-?\d+(\.\d*)?(e[+-]?\d+)?", text)[0]
    decimals = len(found.partition("e")[0].partition(".")[2])
    unit = part * 10.0 ** (int(found.partition("e")[2] or 0) - decimals)
    return abs(float(found) * part - number) <= 0.51 * unit + slack


def check_report(seed, folder):
    """Rows, shares, means and quartiles in the report of a run, with and without rows."""
    case = case_of(seed).fit()
    labels, own = own_distances(case)
    model, k = case.model, len(case.model.cluster_centers_)
    summary = write_run(folder / f"run{seed}", model, case.X)
    assert summary["n_rows"] == len(case.raw)
    with_rows = (folder / f"run{seed}" / "report.html").read_text(encoding="utf-8")
    pages = [with_rows, html_report.report_page(model, summary, None)]
    counts = np.bincount(labels[labels >= 0], minlength=k)
    masses = kept_masses(model, case.masses, own)
    tied = model.trim and len(np.unique(np.round(own, 9))) < len(own)
    for page in pages[: 1 if case.kind in EXACT else 2]:
        tree = html5lib.HTMLParser(strict=True).parse(page)
        for row in tree.findall(f".//{HTML}table[@class='clusters']/{HTML}tbody/{HTML}tr"):
            j = int(re.search(r"\d+", text_of(row[0]))[0])
            assert says(text_of(row[1]), counts[j])
            assert says(text_of(row[2]), counts[j] / counts.sum())
        if (case.kind in EXACT and (case.sample_weight is not None or model.trim)) or tied:
            continue  # means are those of the rows, without weights
        for card in tree.findall(f".//{HTML}div[@class='card column']"):
            _check_card(case, card, labels, masses)


def _check_card(case, card, labels, masses):
    column = int(re.search(r"\d+", text_of(card[0]))[0])
    x = case.raw[:, column]
    held, slack = ~np.isnan(x) & (labels >= 0), 20 * case.exact * np.nanmax(np.abs(x))

    def mean(rows):
        own = np.where(rows & held, masses, 0.0)
        return own @ np.nan_to_num(x) / own.sum() if own.sum() > 0 else np.nan

    what, _, overall = text_of(card[1]).partition(" of all rows: ")
    assert says(overall, mean(held), slack), (what, overall, mean(held))
    for line in card.iter(f"{HTML}li"):
        j, (text, _, note) = int(text_of(line[0])), text_of(line[2]).partition(" (")
        assert says(text, mean(labels == j), slack), (what, j, text, mean(labels == j))
        values, note = x[(labels == j) & held], note.rstrip(")")
        if note.endswith("%"):
            assert says(note, np.mean(values != 0))
        elif note:
            *median, low, high = re.split(", | to ", note.removeprefix("median "))
            quartiles = np.quantile(values, [0.5] * len(median) + [0.25, 0.75])
            assert all(map(lambda t, q: says(t, q, slack), [*median, low, high], quartiles)), note


def check_plan(seed, _):
    """Bytes and blocks of a plan; passes read each block once, and keep to the bound."""
    case = case_of(seed)
    if "sparse" in case.form:
        return
    rng, reads = np.random.default_rng([seed, 85]), Counter()

    def load(block, block_info=None):
        if block_info:
            reads[block_info[0]["chunk-location"][0]] += 1
        return block

    table = da.from_array(case.raw, chunks=(cut(rng, len(case.raw)), -1))
    X = table.map_blocks(load, dtype=float, meta=np.empty((0, 0)))
    if case.model.n_clusters != "auto" and rng.random() < 0.5:
        case.model.set_params(sample_size=None, max_iter=int(rng.integers(1, 8)))
    plan = case.model.plan(X)
    assert not reads
    assert (plan.bytes_per_pass, plan.n_blocks) == (case.raw.nbytes, table.numblocks[0])
    model = case.model.fit(X, sample_weight=case.masses)
    assert model.n_passes_ <= plan.max_passes
    assert set(reads.values()) == {1 if plan.read_once else model.n_passes_}


class Killed(BaseException):
    """What ends a fit at a random iteration."""


def check_resumed(seed, folder):
    """A fit that is ended twice and resumed has the bits of one that is not."""
    case, rng, numbers = case_of(seed), np.random.default_rng([seed, 86]), []
    if isinstance(case.model, EntropyPowerKMeans) and case.kind == "sqeuclidean":
        case.model.set_params(lam=pick(rng, 0.1, "auto"))
    given = {"sample_weight": case.sample_weight, **case.dims}
    whole = clone(case.model).set_params(
        callbacks=[lambda record: numbers.append(record.iteration)]
    )
    whole.fit(case.X, **given)
    path = str(folder / f"checkpoint{seed}")
    for last in (*rng.integers(1, len(numbers) + 1, size=2), 10**9):
        left = iter(range(int(last) - 1))

        def ends(record, left=left):
            if next(left, None) is None:
                raise Killed

        model = clone(case.model).set_params(callbacks=[ends], checkpoint=path)
        try:
            model.fit(case.X, **given)
        except Killed:
            continue
    names = ("cluster_centers_", "cluster_sizes_", "inertia_", "objective_history_", "scale_")
    for name in names:
        np.testing.assert_array_equal(getattr(model, name), getattr(whole, name), name)
    np.testing.assert_array_equal(plain(model.labels_), plain(whole.labels_))
