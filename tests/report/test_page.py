"""The HTML report: complete, valid, in a real browser, small, and nothing from elsewhere."""

import html
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from decimal import Decimal

import dask.array as da
import dask.dataframe as dd
import html5lib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import zarr
from _shown import kept_masses
from _support import CountingSource
from sklearn.base import clone
from sklearn.datasets import load_wine

import daskmm
from daskmm import (
    ClusterTree,
    EntropyPowerKMeans,
    GaussianMixture,
    KernelPowerKMeans,
    KMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
    plot,
)
from daskmm.cli import printing, run_folder
from daskmm.cli.main import main
from daskmm.cli.run_folder import write_run
from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.cluster._summary import scale_in_words
from daskmm.plot.profiles import Profiles
from daskmm.report import page as html_report
from daskmm.report.means import Sampled, means_of
from daskmm.storage.readable import readable_share

NAMES = ["age", "price $", "a$b$c", "<script>alert(1)</script>", "x & y", 'say "so"', "Größe\n"]
SVG = "{http://www.w3.org/2000/svg}"
HTML = "{http://www.w3.org/1999/xhtml}"
FIGURES = {
    "power": {"projection", "trace"},
    "kmeans": {"projection", "trace"},
    "entropy": {"projection", "weights", "lam_path", "trace"},
    "kernel": {"projection", "trace"},
    "multi-kernel": {"projection", "trace"},
    "mean-shift": {"projection", "weights", "bandwidth_path"},
}


def table(n_rows=240):
    centers = 9 * np.eye(len(NAMES))[:4]
    rng = np.random.default_rng(0)
    return centers[np.arange(n_rows) % 4] + rng.normal(size=(n_rows, len(NAMES)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("a & <b>")
    pd.DataFrame(table(), columns=NAMES).to_csv(path / "rows.csv", index=False)
    return path


def options_of(model):
    return {
        "mean-shift": [],
        "entropy": ["-k", "4", "--lam", "auto", "--n-init", "1"],
    }.get(model, ["-k", "4", "--n-init", "1"])


@pytest.fixture(scope="module")
def run_of(folder):
    """A function that returns the run folder of a model, with a report."""

    def run_of(model):
        run = folder / model
        if not run.exists():
            command = ["fit", str(folder / "rows.csv"), "--model", model, "--out", str(run)]
            options = ["--report", "--no-pictures", "--quiet", *options_of(model)]
            assert main([*command, *options]) == 0
        return run

    return run_of


@pytest.fixture
def without_figures(monkeypatch):
    """Reports without figures, which take most of the time of a small one."""
    monkeypatch.setattr(html_report, "pictures", lambda model, sampled: [])


@pytest.fixture(
    params=[
        pytest.param(model, marks=() if model == "entropy" else pytest.mark.long)
        for model in FIGURES
    ]
)
def run(request, run_of):
    return run_of(request.param)


def parsed(page):
    """The page as a tree; it must be valid for the parser that the standard describes."""
    return html5lib.HTMLParser(strict=True).parse(page)


def drawn(tree):
    """Figures of a page, by name."""
    return {figure.get("id"): figure.find(f".//{SVG}svg") for figure in tree.iter(f"{HTML}figure")}


def check_page(page):
    tree = parsed(page)
    assert len(page.encode()) < 2e6
    ids = re.findall(r'\sid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    for name in re.findall(r'(?:url\(#|href="#|labelledby=")([^)"]*)', page):
        assert name in ids
    tags = {element.tag for element in tree.iter() if isinstance(element.tag, str)}
    assert not tags & {f"{HTML}script", f"{HTML}iframe", f"{HTML}object", f"{HTML}img"}
    for element in tree.iter():
        for name, value in element.attrib.items():
            if str(name).endswith(("href", "src")):
                assert value.startswith(("data:", "#")), value
            assert not str(name).startswith("on")
    assert not re.findall(r"url\((?!#)|@import", page)
    figures = drawn(tree)
    labels = [svg.get("aria-label") for svg in figures.values()]
    assert all(len(label) > 60 and re.search(r"\d", label) for label in labels)
    assert len(set(labels)) == len(labels)
    return tree


def test_the_report_of_each_model_has_its_figures(run):
    page = (run / "report.html").read_text(encoding="utf-8")
    tree = check_page(page)
    assert set(drawn(tree)) == FIGURES[run.name]
    text = "".join(tree.itertext())
    summary = json.loads((run / "summary.json").read_text())
    assert "report.html" in summary["files"]
    for part in (
        "4 clusters of 240 rows",
        summary["model"],
        summary["input"],
        "<script>alert(1)</script>",
        *(f"{size:,}" for size in summary["cluster_sizes"]),
    ):
        assert part in text
    rows = tree.findall(f".//{HTML}table[@class='clusters']/{HTML}tbody/{HTML}tr")
    assert len(rows) == summary["n_clusters"]


def test_inspect_makes_a_report_without_figures_of_rows(run, capsys):
    report, kept = run / "report.html", run / "kept.html"
    assert main(["inspect", str(run), "--report"]) == 2
    told = capsys.readouterr().err
    assert "report.html exists" in told
    assert "the model as it is now" in told  # an update may have changed it since
    report.rename(kept)
    try:
        assert main(["inspect", str(run), "--report", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["report"] == str(report)
        tree = check_page(report.read_text(encoding="utf-8"))
        without = FIGURES[run.name] - {"projection"}
        assert set(drawn(tree)) == without
        assert "no figure shows them" in "".join(tree.itertext())
    finally:
        report.unlink()
    try:
        assert main(["inspect", str(run), "--report"]) == 0
        assert f"written:\n  {report}" in capsys.readouterr().out
    finally:
        kept.replace(report)
    assert main(["inspect", str(run)]) == 0


def text_of(element):
    return " ".join("".join(element.itertext()).split())


def cards(tree):
    """What the card of each cluster says of columns, by cluster and column."""
    found = {}
    for card in tree.findall(f".//{HTML}div[@class='card cluster']"):
        names, values = card.iter(f"{HTML}dt"), card.iter(f"{HTML}dd")
        said = {text_of(name): text_of(value) for name, value in zip(names, values, strict=True)}
        found[int(card.get("id").removeprefix("cluster-"))] = said
    return found


def column_cards(tree):
    """The card of each column, by its name."""
    found = tree.findall(f".//{HTML}div[@class='card column']")
    return {text_of(card.find(f"{HTML}h3")): card for card in found}


def paragraph(tree):
    return text_of(tree.find(f".//{HTML}section[@class='words']/{HTML}p"))


def page_of(model, X, sampled=None, notes=()):
    summary = run_folder.summarize(
        model, np.bincount(model.labels_), len(model.labels_), "x", list(notes)
    )
    return check_page(html_report.report_page(model, summary, sampled))


@pytest.mark.usefixtures("without_figures")
def test_clusters_are_described_in_the_units_of_the_table():
    X = np.random.default_rng(0).normal(size=(200, 3))
    X[:100, 1] += 50
    model = KMeans(2, random_state=0).fit(X)
    tree = page_of(model, X, Sampled(X, model.labels_), ["mind <this>"])
    low, high = (X[part, 1].mean() for part in (slice(100, 200), slice(100)))
    of_all = f"{X[:, 1].mean():.0f}"
    cluster = int(model.labels_[0])
    found = cards(tree)
    assert found[cluster] == {"feature 1": f"{high:.0f} (mean; all rows: {of_all})"}
    assert found[1 - cluster] == {"feature 1": f"{low:.0f} (mean; all rows: {of_all})"}
    assert "mind <this>" in "".join(tree.itertext())
    said = paragraph(tree)
    assert said.startswith("The 200 rows form 2 clusters. Each has 100 rows.")
    assert "accounts for over 99.9% of the variation of feature 1" in said or "100%" in said
    assert f"“high feature 1” has a mean feature 1 of {high:.0f} (all rows: {of_all})" in said
    assert "100% are at least twice as near to the centre of their own cluster" in said
    assert said.endswith("Whether a fit to other rows would find the same clusters was not tested.")


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("standardize", ["auto", True])
def test_without_rows_the_columns_of_the_largest_distances_come_first(standardize):
    X = np.random.default_rng(0).normal(size=(200, 5))
    X[:100, 3] += 50
    X[:100, 1] += 5
    # Trimmed fits do not keep variances.
    model = KMeans(2, trim=0.02, standardize=standardize, random_state=0).fit(X)
    tree = page_of(model, X)
    assert list(column_cards(tree))[:2] == ["feature 3", "feature 1"]
    assert "similarity" not in paragraph(tree)


def test_a_kernel_fit_of_landmarks_has_a_report(tmp_path):
    model = KernelPowerKMeans(2, n_landmarks=20, random_state=0).fit(table()[:, :3])
    write_run(tmp_path / "run", model, table()[:, :3])
    tree = check_page((tmp_path / "run/report.html").read_text(encoding="utf-8"))
    assert len(cards(tree)) == 2


@pytest.mark.parametrize("given", [np.asarray, da.asarray, pd.DataFrame])
def test_a_run_of_other_rows_than_those_of_the_fit_is_refused(tmp_path, given):
    model = KMeans(2, random_state=0).fit(given(table()[:, :3]))
    with pytest.raises(ValueError, match=r"X has 10 rows, but the model was fitted to \d+ rows"):
        write_run(tmp_path / "run", model, given(table()[:10, :3]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("lazily_fitted", [True, False])
def test_a_run_takes_the_rows_of_the_fit_lazily_or_in_memory(tmp_path, lazily_fitted):
    rows = pd.DataFrame(table()[:, :3], columns=list("abc"))
    lazy = dd.from_map(lambda first: rows[first : first + 100], range(0, len(rows), 100))
    fitted, given = (lazy, rows) if lazily_fitted else (rows, lazy)
    model = KMeans(4, random_state=0).fit(fitted)
    summary = write_run(tmp_path / "run", model, given, pictures=False, report=False)
    assert summary["n_rows"] == len(rows)
    labels = zarr.open(tmp_path / "run" / "labels.zarr", mode="r")[:]
    np.testing.assert_array_equal(labels, np.asarray(model.labels_))
    with pytest.raises(ValueError, match="but the model was fitted to"):
        write_run(tmp_path / "other", model, given.loc[given["a"] > 0])


@pytest.mark.parametrize("given", [np.asarray, lambda X: da.asarray(X, chunks=(50, 3))])
def test_a_run_of_rows_in_another_order_is_refused(tmp_path, given):
    X = table()[:, :3]
    model = KMeans(4, random_state=0).fit(given(X))
    with pytest.raises(ValueError, match=r"has them in another order.*ORDER BY"):
        write_run(tmp_path / "run", model, given(X[1:].tolist() + X[:1].tolist()))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("estimator", [KMeans(2, missing="partial"), GaussianMixture(2)])
def test_a_frame_of_flags_decimals_and_nullable_numbers_has_the_report_of_its_numbers(
    tmp_path, estimator
):
    numbers = pd.DataFrame(table()[:, :3].round(2), columns=["price", "guests", "parking"])
    numbers = numbers.assign(guests=numbers["guests"].round(), parking=numbers["parking"] > 0)
    frame = numbers.assign(
        price=[Decimal(str(price)) for price in numbers["price"]],
        guests=numbers["guests"].astype("Int64"),
    )
    if hasattr(estimator, "empty_rows"):
        numbers.loc[3, "guests"], frame.loc[3, "guests"] = np.nan, pd.NA
    trees = []
    for number, given in enumerate((frame, numbers.astype(float))):
        model = clone(estimator).set_params(random_state=0).fit(given)
        write_run(tmp_path / str(number), model, given)
        trees.append(parsed((tmp_path / f"{number}/report.html").read_text(encoding="utf-8")))
    assert paragraph(trees[0]) == paragraph(trees[1])
    assert cards(trees[0]) == cards(trees[1])


@pytest.mark.usefixtures("without_figures")
def test_mixed_columns_have_shares_levels_and_days(tmp_path):
    rng = np.random.default_rng(0)
    kinds = np.arange(300) % 3
    frame = pd.DataFrame(
        {
            "age": np.array([20.0, 40, 60])[kinds] + rng.normal(0, 3, 300),
            "plan": np.array(["free", "basic", "pro"])[kinds],
            "mobile": kinds == 1,
            "since": pd.Timestamp("2024-01-05") + pd.to_timedelta(91 * kinds, unit="D"),
        }
    )
    given = {"distortion": "mixed", "metric_params": {"dates": ["since:trend", "since:season"]}}
    model = PowerKMeans(3, random_state=0, n_init=1, **given).fit(frame)
    write_run(tmp_path / "run", model, frame)
    tree = check_page((tmp_path / "run/report.html").read_text(encoding="utf-8"))
    columns = {}
    for card in tree.findall(f".//{HTML}div[@class='card column']"):
        lines = {int(text_of(line[0])): text_of(line[2]) for line in card.iter(f"{HTML}li")}
        columns[text_of(card[0])] = lines
    cluster = int(model.labels_[1])
    age = frame.loc[kinds == 1, "age"]
    assert columns["age"][cluster].startswith(f"{age.mean():.0f} ({age.quantile(0.25):.0f} to ")
    assert columns["plan"][cluster] == "basic 100%"
    assert columns["mobile"] == {j: "100%" if j == cluster else "0%" for j in range(3)}
    assert columns["since (date)"][cluster] == "2024-04-05 (2024-04-05 to 2024-04-05)"
    assert re.fullmatch(r"around \d April", columns["since (time of the year)"][cluster])
    assert "twice as near" in paragraph(tree)


@pytest.mark.usefixtures("without_figures")
def test_dates_of_the_whole_year_have_no_mean_day_and_their_two_parts_have_two_names(tmp_path):
    kinds = np.arange(400) % 4
    days = np.random.default_rng(0).integers(0, 5, 400) * 365.25 + 91.3 * kinds
    since = pd.Timestamp("2020-01-05") + pd.to_timedelta(days.astype(int), unit="D")
    frame = pd.DataFrame({"age": kinds, "income": kinds, "plan": kinds.astype(str), "since": since})
    frame.loc[::10, "since"] = pd.NaT
    given = {"distortion": "mixed", "metric_params": {"dates": ["since:trend", "since:season"]}}
    model = PowerKMeans(4, missing="partial", random_state=0, n_init=1, **given).fit(frame)
    write_run(tmp_path / "run", model, frame)
    tree = check_page((tmp_path / "run/report.html").read_text(encoding="utf-8"))
    assert "Values are missing: 10% of since." in text_of(tree)
    assert list(model.summary_.filter(regex="^missing")) == ["missing_since"]
    said = [text_of(each) for each in tree.findall(f".//{HTML}p[@class='quiet']")]
    assert "time of the year of all rows: all year" in said
    since = cards(tree)[int(model.labels_[4])]["since (time of the year)"]
    assert re.match("around [45] January", since)


@pytest.mark.usefixtures("without_figures")
def test_a_level_of_nearly_all_rows_sets_no_cluster_apart(tmp_path):
    rng = np.random.default_rng(0)
    kinds = np.arange(600) % 3
    cancelled = (kinds == 2) & (rng.random(600) < 0.06)
    frame = pd.DataFrame({"age": 9.0 * kinds + rng.random(600), "cancelled": cancelled.astype(str)})
    model = KMeans(3, distortion="mixed", random_state=0).fit(frame)
    write_run(tmp_path / "run", model, frame)
    tree = check_page((tmp_path / "run/report.html").read_text(encoding="utf-8"))
    assert list(cards(tree)[int(model.labels_[0])]) == ["age"]
    assert "cancelled" not in model.summary_["cluster_name"][model.labels_[0]]


@pytest.mark.usefixtures("without_figures")
def test_columns_that_are_mostly_zeros_have_shares_of_the_others(tmp_path):
    kinds = np.arange(120) % 3
    counts = np.random.default_rng(0).poisson(np.array([0.05, 4.0, 0.05])[kinds])
    X = sp.csr_array(np.column_stack([counts, 2.0 + kinds]))
    model = KMeans(3, distortion="cosine", random_state=0).fit(X)
    write_run(tmp_path / "run", model, X)
    tree = check_page((tmp_path / "run/report.html").read_text(encoding="utf-8"))
    (card,) = (
        card
        for card in tree.findall(f".//{HTML}div[@class='card column']")
        if text_of(card[0]) == "feature 0"
    )
    for line in card.iter(f"{HTML}li"):
        own = counts[model.labels_ == int(text_of(line[0]))]
        said = text_of(line[2])
        assert said.startswith(f"{own.mean():.1f} (")
        if len(own) >= 10:
            assert said.endswith(f"({readable_share((own != 0).mean())})")


@pytest.mark.usefixtures("without_figures")
def test_names_and_levels_cannot_be_markup(tmp_path):
    frame = pd.DataFrame({"<b>": ["<i>x</i>", "{{ y }}"] * 20, "a&b": np.arange(40.0) % 2})
    model = KMeans(2, distortion="mixed", random_state=0).fit(frame)
    write_run(tmp_path / "run", model, frame, source="<script>", notes=["<b>"])
    page = (tmp_path / "run/report.html").read_text(encoding="utf-8")
    tree = check_page(page)
    assert not {f"{HTML}b", f"{HTML}i"} & {element.tag for element in tree.iter()}
    assert "{{ y }}" in "".join(tree.itertext())


@pytest.mark.usefixtures("without_figures")
def test_rows_without_any_value_are_counted_beside_the_clusters(tmp_path):
    X = table()[:, :3]
    X[:40], X[100:160, 1] = np.nan, np.nan
    model = KMeans(3, missing="partial", empty_rows="label", trim=0.1, random_state=0).fit(X)
    run = write_run(tmp_path / "run", model, X)
    assert run["n_rows"] == 240
    assert sum(run["cluster_sizes"]) == 200
    page = (tmp_path / "run/report.html").read_text(encoding="utf-8")
    assert "The 240 rows form 3 clusters. Rows without any value belong to no cluster (40)." in page
    assert re.search(r"Values are missing: \d+% of feature 1\.", page)
    told = printing.describe_run(tmp_path, run)
    assert "rows in no cluster, labelled -1: 40" in told
    assert re.search(r"missing values: feature 1 \d+%", told)


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(
    "model",
    [KMeans(3, distortion="manhattan", random_state=0), WeightedBlurringMeanShift(bandwidth=0.05)],
)
def test_centres_that_are_no_means_are_called_centres(model):
    X = np.exp(table()[:, :3] / 9)
    model.fit(X)
    said = " ".join(page_of(model, X).itertext())
    assert "mean feature" not in said
    assert "accounts for" not in said
    center = model.cluster_centers_[np.bincount(model.labels_).argmax(), 0]
    assert re.search(rf"{center:.1f}\d* \(centre; all clusters: ", " ".join(said.split()))
    told = text_of(page_of(model, X, Sampled(X, model.labels_)))
    assert "(mean; all rows: " in told
    assert "centre with" not in told


@pytest.mark.usefixtures("without_figures")
def test_columns_of_an_updated_model_are_compared_in_the_scale_of_its_fit():
    X = np.random.default_rng(0).normal(size=(200, 2)) * [1.0, 1e4]
    X[:100, 0] += 9
    model = KMeans(2, standardize=True, random_state=0).fit(X).partial_fit(X[::2])
    sizes = model.cluster_sizes_.astype(int)
    summary = run_folder.summarize(model, sizes, 300, "x", [])
    tree = check_page(html_report.report_page(model, summary, None))
    assert next(iter(column_cards(tree))) == "feature 0"
    assert "accounts for" not in paragraph(tree)
    assert "Means count each row in the cluster that it had in its fit or update." in text_of(tree)


@pytest.mark.usefixtures("without_figures")
def test_directions_are_not_called_means():
    X = 50 * np.exp(table()[:, :3] / 9)
    model = KMeans(3, distortion="cosine", random_state=0).fit(X)
    said = " ".join(" ".join(page_of(model, X).itertext()).split())
    assert f"{model.cluster_means_[0].max():.2f} (direction; all clusters: " in said
    assert "a direction with feature" in said
    assert "mean feature" not in said


def test_reports_and_commands_say_that_means_leave_out_trimmed_rows(tmp_path):
    X = np.concatenate([table()[:, :3], [[900.0, 0, 0]]])
    for trim in (0.02, 0.0):
        summary = write_run(tmp_path / f"{trim}", KMeans(2, trim=trim, random_state=0).fit(X), X)
        page = parsed((tmp_path / f"{trim}/report.html").read_text(encoding="utf-8"))
        said = "The fit trimmed 2.0% of the rows"
        assert (
            (said in paragraph(page))
            == (said in printing.describe_run("run", summary))
            == bool(trim)
        )
        assert ("leave out the rows that the fit trimmed" in text_of(page)) == bool(trim)


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("distortion", ["cosine", "manhattan"])
def test_means_of_sampled_rows_are_not_said_to_leave_out_trimmed_rows(distortion):
    X = np.concatenate([table()[:, :3], [[900.0, 0, 0]]])
    model = KMeans(2, trim=0.02, distortion=distortion, random_state=0).fit(X)
    tree = page_of(model, X, Sampled(X, model.labels_))
    said = text_of(tree)
    overall = re.search(r"mean of all rows: (\S+)", text_of(column_cards(tree)["feature 0"]))
    assert float(overall[1]) == pytest.approx(X[:, 0].mean(), abs=0.5)  # trimmed rows count
    assert "centres leave them out" in said
    assert "leave out the rows" not in said


@pytest.mark.usefixtures("without_figures")
def test_means_of_a_trimmed_weighted_fit_are_those_of_the_rows_that_are_kept():
    rng = np.random.default_rng(0)
    X, weights = table()[:, :3], rng.integers(1, 5, 240)
    X[:24] += 500 * rng.normal(size=(24, 3))
    model = KMeans(4, trim=0.25, random_state=0).fit(X, sample_weight=weights)
    own = np.linalg.norm(X - model.cluster_centers_[model.labels_], axis=1)
    masses = kept_masses(model, weights.astype(float), own)
    found = means_of(model, np.bincount(model.labels_), Sampled(X, model.labels_)).overall
    np.testing.assert_allclose(found, masses @ X / masses.sum())


@pytest.mark.usefixtures("without_figures")
def test_one_cluster_and_one_row_have_a_report():
    for X, k in ((np.ones((1, 2)), 1), (np.arange(8.0).reshape(4, 2), 1)):
        model = KMeans(k, random_state=0).fit(X)
        said = paragraph(page_of(model, X, Sampled(X, model.labels_)))
        assert said in ("The only row forms 1 cluster.", "The 4 rows form 1 cluster.")


def test_reports_draw_the_paths_of_choices():
    X = table()[:, :4] * [1, 1, 1, 20]  # whether to standardise is a question
    model = PowerKMeans("auto", standardize="auto", n_init=1, random_state=0).fit(X)
    summary = run_folder.summarize(model, np.bincount(model.labels_), len(model.labels_), "x", [])
    tree = check_page(html_report.report_page(model, summary, Sampled(X, model.labels_)))
    assert "n_clusters_path" in drawn(tree)
    assert "nats on standardised features" in "".join(tree.itertext())


def test_a_report_of_lazy_data_reads_them_once(tmp_path):
    """The sample comes with the labels; lazy data are never gathered."""
    X = table(1200)
    source = CountingSource(X)
    lazy = source.as_dask((100, len(NAMES)))
    model = KMeans(4, n_init=1, random_state=0).fit(lazy)
    source.reads.clear()
    run_folder.write_run(
        tmp_path / "run", model, lazy, source="", notes=[], pictures=False, report=True
    )
    assert source.reads == dict.fromkeys(range(0, 1200, 100), 1)
    check_page((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))


@pytest.mark.usefixtures("without_figures")
def test_a_report_of_lazy_mixed_columns_reads_them_once(tmp_path):
    reads = Counter()

    def part(number):
        reads[number] += 1
        rng = np.random.default_rng(number)
        kinds = rng.integers(2, size=50)
        plan = pd.Series(np.array(["free", "pro"])[kinds], dtype=object)
        return pd.DataFrame({"age": 20.0 + 20 * kinds + rng.normal(size=50), "plan": plan})

    lazy = dd.from_map(part, range(6), meta=part(0)[:0])
    model = KMeans(2, n_init=1, distortion="mixed", random_state=0).fit(lazy)
    reads.clear()
    write_run(tmp_path / "run", model, lazy)
    assert reads == dict.fromkeys(range(6), 1)
    tree = check_page((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert "from all rows" in "".join(tree.itertext())


def test_samples_of_wide_rows_are_smaller():
    assert len(run_folder._chosen(10**6, 50)) == 4000
    assert len(run_folder._chosen(10**6, 5000)) == 1600
    np.testing.assert_array_equal(run_folder._chosen(30, 10), np.arange(30))


def wide_report():
    """A report of 200 clusters in 5,000 features."""
    rng = np.random.default_rng(0)
    truth = np.arange(1000) % 200
    X = rng.normal(size=(200, 5000)).astype(np.float32)[truth]
    X += rng.normal(size=X.shape).astype(np.float32)
    model = KMeans(200, init=X[:200], max_iter=2, tol=0).fit(X)
    summary = run_folder.summarize(
        model, np.bincount(model.labels_), len(model.labels_), "wide.zarr", []
    )
    return html_report.report_page(model, summary, Sampled(X, model.labels_))


@pytest.mark.long
def test_reports_of_many_clusters_and_features_stay_small():
    page = wide_report()
    tree = check_page(page)
    rows = tree.findall(f".//{HTML}table[@class='clusters']/{HTML}tbody/{HTML}tr")
    assert len(rows) == 200
    assert len(cards(tree)) == 12
    assert "4,976 further columns of 5,000 are not shown" in page


def test_without_matplotlib_nothing_is_fitted(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    fit = ["fit", str(folder / "rows.csv"), "-k", "2", "--out", str(tmp_path / "run")]
    assert main([*fit, "--report", "--no-pictures"]) == 2
    assert "daskmm[plot]" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*fit, "--no-pictures", "--quiet"]) == 0
    for missing in ("matplotlib.figure", "jinja2"):
        with monkeypatch.context() as context:
            context.setitem(sys.modules, missing, None)
            assert main(["inspect", str(tmp_path / "run"), "--report"]) == 2
        assert "daskmm[plot]" in capsys.readouterr().err


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# What a browser says of pages, by a script that is not part of them.
_PROBE = """
<body></body>
<pre id="found"></pre>
<script>
const measured = frame => {{
  const page = frame.contentDocument;
  const figures = [...page.querySelectorAll("figure")].map(figure => {{
    const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
    return {{name: figure.id, width: box.width, height: box.height,
             label: svg.getAttribute("aria-label"),
             ink: getComputedStyle(svg.querySelector("text")).fill}};
  }});
  const images = [...page.querySelectorAll("svg image")];
  return {{figures, images: images.map(image => image.getBoundingClientRect().width),
    width: page.documentElement.scrollWidth,
    requests: page.defaultView.performance.getEntriesByType("resource").map(e => e.name),
    paper: getComputedStyle(page.querySelector("section")).backgroundColor}};
}};
const frames = {frames}.map(([address, width]) => {{
  const frame = document.createElement("iframe");
  Object.assign(frame, {{src: address, height: 800, width}});
  document.body.append(frame);
  return frame;
}});
onload = () => {{
  document.getElementById("found").textContent = JSON.stringify(frames.map(measured));
}};
</script>
"""


def luminance(color):
    red, green, blue = (int(part) for part in re.findall(r"\d+", color)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian's package of that name)")
@pytest.mark.parametrize("dark", [False, True])
def test_reports_fit_the_window_of_a_browser(run_of, tmp_path, dark):
    shown = [(model, width) for model in FIGURES for width in (1200, 400)]
    frames = [((run_of(model) / "report.html").as_uri(), width) for model, width in shown]
    probe = tmp_path / "probe.html"
    probe.write_text(_PROBE.format(frames=json.dumps(frames)))
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--enable-logging=stderr", "--v=0", "--allow-file-access-from-files"),
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        *(f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000"),
        *("--window-size=1300,900", "--dump-dom", probe.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)[1]
    pages = json.loads(html.unescape(found))
    assert len(pages) == len(shown)
    for (model, width), page in zip(shown, pages, strict=True):
        assert {figure["name"] for figure in page["figures"]} == FIGURES[model]
        for figure in page["figures"]:
            assert figure["width"] > 200
            assert figure["height"] > 100
            assert len(figure["label"]) > 60
            # Letters stand out from what they are on.
            assert abs(luminance(figure["ink"]) - luminance(page["paper"])) > 0.6
        assert all(image > 10 for image in page["images"])
        assert page["requests"] == []
        assert page["width"] <= width
        assert (luminance(page["paper"]) < 0.3) == dark


def test_features_weighted_alike_are_not_said_to_be_none(tmp_path):
    model = EntropyPowerKMeans(4, lam=np.inf, n_init=1, random_state=0).fit(table())
    assert model.feature_weights_.tolist() == [1 / 7] * 7
    summary = run_folder.summarize(
        model, np.bincount(model.labels_), len(model.labels_), "rows", []
    )
    page = html_report.report_page(model, summary, None)
    text = "".join(parsed(page).itertext())
    assert "features with more than an equal share of the weightweighted alike" in text.replace(
        "\n", ""
    )
    summary["files"] = []
    printed = printing.describe_fit(tmp_path, summary)
    label = plot.feature_weights(model).get_label()
    best = int(np.argmax(model.feature_gains_))
    for shown in (text, printed, model._repr_html_(), label):
        assert "weighted alike" in shown
        assert f"{best} ({model.feature_gains_[best]:.2g} nats)" in shown


def test_drift_is_a_section_that_is_replaced():
    X = table()[:, :4]
    model = KMeans(2, random_state=0).fit(X)
    summary = run_folder.summarize(model, np.bincount(model.labels_), len(model.labels_), "x", [])
    page = html_report.report_page(model, summary, None)
    watch = daskmm.monitor(model, X)
    for rows in (X, X + 5):
        watch.look(rows)
        found = html_report.with_drift(page, watch)
        page = html_report.with_drift(found, watch)
        assert page == found
    tree = check_page(page)
    rows = tree.findall(f".//{HTML}table[@class='looks']/{HTML}tbody/{HTML}tr")
    assert [row[0].text for row in rows] == ["1", "2"]
    assert rows[0][3].text == "nothing unusual"
    assert "column 'feature " in rows[1][3].text
    assert "looks" in drawn(tree)


@pytest.mark.usefixtures("without_figures")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_means_are_those_of_the_rows_of_the_labels(tmp_path):
    wine = load_wine(as_frame=True).data
    model = KMeans(4, n_init=1, max_iter=1, random_state=0).fit(wine)
    write_run(tmp_path / "run", model, wine)
    tree = parsed((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    means = wine.groupby(model.labels_).mean()
    found = cards(tree)
    assert sorted(found) == [0, 1, 2, 3]
    for cluster, columns in found.items():
        assert columns
        for name, said in columns.items():
            value, of_all = re.fullmatch(r"(\S+) \(mean; all rows: (\S+)\)", said).groups()
            digits = len(value.partition(".")[2])
            assert value == f"{means.loc[cluster, name]:,.{digits}f}"
            assert of_all == f"{wine[name].mean():,.{digits}f}"


@pytest.mark.usefixtures("without_figures")
def test_means_of_a_mixture_that_estimates_missing_values_are_called_so():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"wind": rng.normal(size=600)})
    frame["gust"] = 2 * frame["wind"] + rng.normal(size=600)
    frame["age"] = rng.normal(size=600) + 9 * (np.arange(600) % 2)
    frame.loc[frame["wind"] < 0.5, "gust"] = np.nan
    model = GaussianMixture(2, missing="partial", random_state=0).fit(frame)
    tree = page_of(model, frame, Sampled(frame.to_numpy(), model.predict(frame)))
    assert "accounts for" not in paragraph(tree)
    overall = re.search(r"estimated mean of all rows: (\S+)", text_of(column_cards(tree)["gust"]))
    assert float(overall[1].replace("−", "-")) == pytest.approx(0, abs=0.3)  # those there: 2.3


def test_the_mean_of_all_rows_is_that_of_the_fit_and_not_of_the_sample():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"income": rng.lognormal(10, 1, 3000), "plan": rng.choice(list("abc"), 3000)}
    )
    frame.loc[rng.random(3000) < 0.1, "income"] = np.nan
    model = KMeans(3, distortion="mixed", missing="partial", random_state=0).fit(frame)
    coded = FittedCenters.of(model).table(frame)
    sampled = Sampled(np.asarray(coded)[:300], model.labels_[:300])
    means = means_of(model, model.cluster_sizes_.astype(int).tolist(), sampled)
    shares = [(frame["plan"] == level).mean() for level in "abc"]
    np.testing.assert_allclose(means.overall, [frame["income"].mean(), *shares])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_mean_of_all_rows_of_a_mixture_is_exact_before_it_has_converged():
    rows = np.random.default_rng(0).lognormal(size=(600, 2))
    model = GaussianMixture(3, max_iter=1, n_init=1, random_state=0).fit(rows)
    means = means_of(model, np.bincount(model.labels_, minlength=3).tolist(), None)
    np.testing.assert_allclose(means.overall, rows.mean(axis=0))
    more = np.random.default_rng(1).lognormal(size=(200, 2))
    model.partial_fit(more)
    means = means_of(model, model.cluster_sizes_, None)
    np.testing.assert_allclose(means.overall, np.vstack([rows, more]).mean(axis=0))


@pytest.mark.parametrize("known", [True, False])
def test_the_explained_variation_counts_only_the_rows_that_have_a_value(known):
    rng, late = np.random.default_rng(0), np.arange(3000) % 10 == 0
    rows = np.column_stack([rng.normal(60.0 * late, 20.0), 2000.0 * late])
    rows[late & (rng.random(3000) < 0.9), 0] = np.nan  # most late flights are cancelled
    model = KMeans(2, missing="partial", standardize=False, random_state=0).fit(rows)
    labels, delays = model.labels_, pd.Series(rows[:, 0]).dropna()
    if not known:
        del model.value_shares_
    means = means_of(model, np.bincount(labels).tolist(), Sampled(rows, labels))
    own = delays.groupby(labels[delays.index]).transform("mean")
    assert means.explained[0] == pytest.approx(own.var(ddof=0) / delays.var(ddof=0), rel=0.01)


@pytest.mark.parametrize(
    "given", [{"standardize": True}, {"distortion": "mixed"}, {"standardize": False}]
)
def test_the_explained_variation_of_long_tails_is_not_that_of_the_sample(given):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"sales": rng.lognormal(3, 2, 40_000), "age": rng.normal(size=40_000)})
    model = KMeans(5, random_state=0, n_init=1, **given).fit(frame)
    labels, sales = model.labels_, frame["sales"]
    sampled = Sampled(frame.to_numpy()[:1000], labels[:1000])
    means = means_of(model, np.bincount(labels, minlength=5).tolist(), sampled)
    expected = sales.groupby(labels).transform("mean").var(ddof=0) / sales.var(ddof=0)
    assert means.explained[0] == pytest.approx(expected, abs=1e-6)


def test_the_explained_variation_of_trimmed_fits_is_that_of_the_sample():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(1900, 2)), rng.normal(0.0, 100.0, (100, 2))])
    rows[:1000, 0] += 8.0
    model = KMeans(2, trim=0.05, standardize=True, random_state=0).fit(rows)
    labels = model.labels_
    means = means_of(model, np.bincount(labels).tolist(), Sampled(rows, labels))
    assert (np.asarray(means.explained) < 0.2).all()  # of all rows, most of whose variance is far


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("unit", [1.0, 3 / 52])  # the weights sum to the number of rows, too
@pytest.mark.parametrize("distortion", ["cosine", "euclidean", "manhattan"])
def test_reports_without_means_of_weighted_rows_count_rows_alike_and_say_so(distortion, unit):
    rng, group = np.random.default_rng(0), np.arange(3000) % 3
    rows = rng.normal(size=(3000, 3)) * 0.1 + np.eye(3)[group]
    rows = np.column_stack([rows, np.where(rng.random(3000) < 0.1, 0.1, 0.0)])  # mostly zeros
    weights = np.where(group == 0, 50.0, 1.0) * unit
    model = KMeans(3, distortion=distortion, random_state=0).fit(rows, sample_weight=weights)
    labels = model.labels_
    means = means_of(model, np.bincount(labels).tolist(), Sampled(rows, labels))
    np.testing.assert_allclose(means.overall, rows.mean(axis=0))
    of_clusters = np.array([rows[labels == j].mean(axis=0) for j in range(3)])
    np.testing.assert_allclose(means.clusters, of_clusters)
    expected = of_clusters[labels].var(axis=0) / rows.var(axis=0)
    np.testing.assert_allclose(means.explained, expected, rtol=1e-3)
    said = text_of(page_of(model, rows, Sampled(rows, labels)))
    assert "(mean without weights; all rows: " in said
    assert "mean of all rows" not in said


@pytest.mark.parametrize("standardize", [True, False])
def test_the_explained_variation_of_weighted_fits_is_weighted(standardize):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 2)) + 4.0 * np.eye(3, 2)[np.arange(3000) % 3]
    weights = np.where(np.arange(3000) % 3 == 0, 50.0, 1.0) * rng.uniform(0.5, 1.5, 3000)
    model = KMeans(3, standardize=standardize, random_state=0).fit(rows, sample_weight=weights)
    labels = model.labels_
    means = means_of(model, np.bincount(labels).tolist(), Sampled(rows, labels))
    overall = np.average(rows, axis=0, weights=weights)
    of_clusters = [np.average(rows[labels == j], 0, weights[labels == j]) for j in range(3)]
    squares = (np.square(each - overall) for each in (np.array(of_clusters)[labels], rows))
    between, total = (np.average(each, axis=0, weights=weights) for each in squares)
    np.testing.assert_allclose(means.overall, overall)
    np.testing.assert_allclose(means.explained, between / total)
    page = text_of(page_of(model, rows, Sampled(rows, labels)))
    assert "of the weighted variation of" in page
    assert "has a weighted mean feature" in page
    assert "(mean; " not in page


@pytest.mark.usefixtures("without_figures")
def test_the_report_and_the_command_say_which_values_are_missing(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3)) + 9.0 * (np.arange(200) % 2)[:, None] * [1, 0, 0]
    rows[1:180:2, 1] = np.nan
    frame = pd.DataFrame(rows, columns=["age", "income", "size"])
    model = KMeans(2, missing="partial", random_state=0, standardize=False).fit(frame)
    summary = write_run(tmp_path / "run", model, frame)
    assert summary["missing_shares"] == {"income": pytest.approx(0.45)}
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Values are missing: 45% of income. By cluster, it is " in page
    assert "90% of income in “high age”" in page
    assert "0% of income in “low age”" in page
    assert "missing values: income 45%" in printing.describe_run(tmp_path, summary)


@pytest.mark.usefixtures("without_figures")
def test_reports_and_commands_warn_of_far_clusters(tmp_path):
    rows = np.random.default_rng(0).normal(size=(1500, 2))
    rows[:750, 0] += 8.0
    rows[:2] += 1000.0
    pd.DataFrame(rows, columns=["a", "b"]).to_csv(tmp_path / "rows.csv", index=False)
    fit = ["fit", str(tmp_path / "rows.csv"), "-k", "3", "--out", str(tmp_path / "run"), "--report"]
    assert main([*fit, "--model", "kmeans", "--no-pictures", "--quiet"]) == 0
    told = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    assert len(told) == 1
    assert "1 of 3 clusters is far from all others, and holds 2 of 1,500 rows." in told[0]
    assert "far from all others" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    with pytest.warns(UserWarning, match=r"leave the farthest rows out of the fit by trim=0\.003"):
        KMeans(3, random_state=0).fit(rows)
    KMeans(3, random_state=0, trim=0.003).fit(rows)


def test_runs_are_written_of_whatever_was_fitted(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=list("abc"))
    lazy = pl.from_pandas(frame).lazy()
    updated = KMeans(3, random_state=0)
    for part in (lazy.head(30), lazy.tail(30)):
        updated.partial_fit(part)
    models = {
        "frame": KMeans(3, random_state=0).fit(lazy),
        "tree": ClusterTree((3, 2), random_state=0).fit(lazy),
        "updated": updated,
    }
    for name, model in models.items():
        write_run(tmp_path / name, model, lazy, report=False)
        labels = np.asarray(zarr.open_array(tmp_path / name / "labels.zarr"))
        np.testing.assert_array_equal(labels, model.predict(lazy))


@pytest.mark.usefixtures("without_figures")
def test_long_tails_show_medians_and_many_columns_no_share_of_clear_rows():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"pay": rng.lognormal(0, 1.5, 400), "age": rng.normal(size=400)})
    model = KMeans(2, standardize=True, random_state=0).fit(X)
    page = "".join(page_of(model, X, Sampled(X.to_numpy(), model.labels_)).itertext())
    assert "(median " in page
    assert "clearly in it" in page
    wide = pd.DataFrame(rng.normal(size=(400, 60)), columns=[f"x{j}" for j in range(60)])
    model = KMeans(2, standardize=True, random_state=0).fit(wide)
    page = "".join(page_of(model, wide, Sampled(wide.to_numpy(), model.labels_)).itertext())
    assert "hardly any are twice as near" in page
    assert "clearly in it" not in page


@pytest.mark.parametrize("standardize", [True, False])
def test_feature_weights_of_incomplete_columns_do_not_change_variances_and_words(standardize):
    X = np.random.default_rng(0).normal(size=(300, 3)) * [1.0, 5.0, 9.0]
    X[:150] += 20.0
    X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
    options = {"missing": "partial", "lam": 1.0, "standardize": standardize, "empty_rows": "label"}
    model = EntropyPowerKMeans(2, n_init=1, random_state=0, **options).fit(X)
    means = means_of(model, model.cluster_sizes_, None)
    assert means.known
    np.testing.assert_allclose(means.variance, np.nanvar(X, axis=0), rtol=1e-9)
    assert scale_in_words(model) == ("standardised" if standardize else "not standardised")
    if standardize:
        expected = (model.cluster_means_ - np.nanmean(X, axis=0)) / np.nanstd(X, axis=0)
        np.testing.assert_allclose(Profiles.of(model).deviations, expected, rtol=1e-6)


def test_means_of_a_sample_leave_out_rows_without_a_cluster():
    X = np.vstack([np.zeros((30, 1)), np.full((30, 1), 9.0), np.full((40, 1), np.nan)])
    X[::2] += 1.0
    options = {"missing": "partial", "empty_rows": "label", "distortion": "manhattan"}
    model = KMeans(2, standardize=False, random_state=0, **options).fit(X)
    means = means_of(model, model.cluster_sizes_, Sampled(X, model.labels_))
    np.testing.assert_allclose(np.sort(means.clusters[:, 0]), [0.5, 9.5])
    np.testing.assert_allclose([*means.overall, *means.variance], [5.0, np.nanvar(X)])


def test_profiles_count_rows_and_measure_from_their_mean():
    rows = table()[:, :3]
    weights = np.full(len(rows), 7)
    model = KMeans(2, standardize=True, random_state=0, n_init=1)
    lazy = model.fit(da.from_array(rows, chunks=(50, -1)), sample_weight=weights)
    assert Profiles.of(lazy).sizes is None
    expected = Profiles.of(lazy).deviations
    sparse = model.fit(sp.csr_array(rows))
    order = [np.abs(Profiles.of(sparse).deviations - own).sum(axis=1).argmin() for own in expected]
    np.testing.assert_allclose(Profiles.of(sparse).deviations[order], expected, atol=1e-6)


@pytest.mark.usefixtures("without_figures")
def test_means_of_sampled_rows_are_called_so_and_left_out_for_clusters_with_few_of_them():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(300, 2)), rng.normal(9, 1, (300, 2)), [[50, 50]] * 30])
    model = WeightedBlurringMeanShift(0.02).fit(rows)
    chosen = np.concatenate([np.arange(0, 600, 2), [600, 601]])
    sampled = Sampled(rows[chosen], model.labels_[chosen])
    tree = page_of(model, rows, sampled)
    said = cards(tree)
    few, first = model.labels_[600], model.labels_[300]
    of_first = rows[chosen][model.labels_[chosen] == first].mean(axis=0)
    assert (
        f"{of_first[0]:.0f} (mean of sampled rows; all sampled rows: " in said[first]["feature 0"]
    )
    assert said[few] == {"–": ""}
    assert "has sampled rows with a mean feature 1 of" in paragraph(tree)


def test_a_list_of_rows_is_written_as_a_run(tmp_path):
    rows = table()[:, :3].tolist()
    summary = write_run(tmp_path / "run", KMeans(2, random_state=0).fit(rows), rows, report=False)
    assert summary["n_rows"] == len(rows)
