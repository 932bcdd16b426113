"""Write the report of a fit: one self-contained HTML page without scripts."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskmm.cluster._summary import scale_in_words
from daskmm.data.mixed import Column
from daskmm.data.names import ALIKE, counted, feature_names, features_explained, listed, spaced
from daskmm.numerics.kernels import Kernel
from daskmm.plot.figures import cluster_colors, require_matplotlib
from daskmm.report import words
from daskmm.report.columns import Histograms, Profile, profile_of
from daskmm.report.figures import Picture, drift_picture, inline_svg, pictures
from daskmm.report.means import WEIGHTED, Means, Sampled, has_means_of_fit, means_of
from daskmm.report.separation import Separation, separation_of
from daskmm.storage.readable import (
    readable_bytes,
    readable_number,
    readable_seconds,
    readable_share,
)
from daskmm.storage.strict_json import plain

if TYPE_CHECKING:
    from jinja2 import Environment

# Largest numbers that a report shows, line by line: clusters in the table, and clusters that are
# described; columns that are described, and columns in which a cluster stands out; looks of a
# monitor, and reasons of each; kernels; items of an array, and characters of a parameter or a name.
_MOST_ROWS, _MOST_DESCRIBED = 500, 12
_MOST_COLUMNS, _TELLING = 24, 4
_MOST_LOOKS, _MOST_REASONS = 50, 3
_MOST_KERNELS = 4
_MOST_ITEMS, _MOST_LETTERS = 12, 60
# A cluster stands out in a column only if its squared distance from the mean of all rows, over the
# variance, is at least this.
_STANDS_OUT = 0.04
# Marks around the section about drift, which is replaced by a later one.
_DRIFT = "<!-- drift -->"
# Size of a histogram in the units of its drawing.
_WIDTH, _HEIGHT = 240, 32


def require_report() -> None:
    """Raise ImportError, which names the extra, if a package that reports need is not installed."""
    require_matplotlib()
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Reports need jinja2, of the extra 'plot': pip install 'daskmm[plot]'."
        ) from error


def report_page(model: Any, summary: Mapping[str, Any], sampled: Sampled | None) -> str:
    """Return the report of a fit as HTML; raise ImportError without matplotlib or jinja2.

    Lazy labels of the model are not computed. `summary` is the content of ``summary.json`` in the
    run folder. Without a sample of the rows, distributions and figures of rows are left out.
    """
    require_report()
    sizes = summary["cluster_sizes"]
    means = means_of(model, sizes, sampled)
    columns = None if means is None else _Columns(model, means, sampled)
    order = np.argsort(-np.asarray(sizes), kind="stable")[:_MOST_ROWS].tolist()
    telling = {} if columns is None else {j: columns.telling(j) for j in order[:_MOST_DESCRIBED]}
    separation = separation_of(model, sampled)
    stability = getattr(model, "stability_", None)
    rows = [_row(j, summary, telling.get(j), separation, stability) for j in order]
    defaults = plain(type(model)().get_params())
    parameters = summary["parameters"]
    changed = {name: own for name, own in parameters.items() if own != defaults.get(name)}
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=f"{counted(len(sizes), 'cluster')} of {counted(summary['n_rows'], 'row')}",
            summary=summary,
            style=_style(),
            words=_in_words(summary, columns, telling, separation, stability),
            gaps=words.of_missing(model, summary, words.cluster_titles(summary)),
            clusters=rows,
            caption=_caption(model, summary, rows, separation),
            columns=[] if columns is None else columns.first(_MOST_COLUMNS),
            apart=_about_cards(rows, columns),
            beside=_about_columns(means, sampled),
            pictures=pictures(model, sampled),
            facts_of_fit=_facts(model, summary, changed),
            facts_of_method=list(_found(model, summary).items()),
            parameters=[(name, _brief(own)) for name, own in parameters.items()],
            origin=_origin(summary, sampled),
        )
    )


def with_drift(page: str, monitor: Any) -> str:
    """Return a report with a section about the batches that a monitor compared.

    A former section in the page is replaced.
    """
    page = "".join(page.split(_DRIFT)[::2])
    template = _environment().get_template("drift.html")
    section = template.render(picture=drift_picture(monitor), looks=monitor.looks[-_MOST_LOOKS:])
    before, main, after = page.rpartition("</main>")
    return "".join([before, _DRIFT, section, _DRIFT, main, after])


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def svg(picture: Picture) -> Markup:
        return Markup(inline_svg(picture.figure, picture.name))

    environment = Environment(
        loader=PackageLoader("daskmm.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        # Unprintable characters of text that is not HTML become spaces.
        finalize=lambda value: value if hasattr(value, "__html__") else spaced(value),
    )
    environment.globals.update(
        drawn=_paths,
        known=lambda values: bool(np.isfinite(values).all()),
        levels=lambda names: listed(list(map(_shortened, names)), len(names)),
        percent=lambda share: f"{share:.1%}",
        reasons=_reasons,
        svg=svg,
    )
    return environment


def _style() -> Any:
    from markupsafe import Markup

    return Markup((resources.files(__package__) / "page.css").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class _Row:
    """A cluster in the table, as text; `telling` is None if the cluster has no card."""

    number: int
    title: str
    color: str
    rows: str
    share: str
    part: str
    stability: str | None
    clear: str | None
    telling: list[Profile] | None


def _row(
    cluster: int,
    summary: Mapping[str, Any],
    telling: list[Profile] | None,
    separation: Separation | None,
    stability: NDArray[np.float64] | None,
) -> _Row:
    sizes, names = summary["cluster_sizes"], summary.get("cluster_names")
    size, total = sizes[cluster], max(sum(sizes), 1)
    red, green, blue = (round(255 * part) for part in cluster_colors(len(sizes))[cluster])
    compared = separation is not None and separation.tells
    clear = float(separation.clear_by_cluster[cluster]) if separation and compared else None
    return _Row(
        cluster,
        f"{cluster}: {_shortened(names[cluster])}" if names else f"cluster {cluster}",
        f"#{red:02x}{green:02x}{blue:02x}",
        f"{size:,}",
        readable_share(size / total),
        f"{size / max(1, *sizes):.1%}",
        None if stability is None else f"{stability[cluster]:.2f}".replace("nan", "–"),
        None if clear is None else ("–" if np.isnan(clear) else readable_share(clear)),
        telling,
    )


class _Columns:
    """Profiles of the columns, each made when it is asked for."""

    def __init__(self, model: Any, means: Means, sampled: Sampled | None) -> None:
        mixed = getattr(model, "columns_", None)
        seasons = {column.source for column in mixed or () if column.is_season}
        names = feature_names(model) if mixed is None else [_title_of(c, seasons) for c in mixed]
        named = mixed is not None or hasattr(model, "feature_names_in_")
        self.names = [_shortened(name) if named else f"feature {name}" for name in names]
        self.means = means
        self._mixed, self._sampled = mixed, sampled
        self._weights = getattr(model, "feature_weights_", np.ones(len(names)))
        self._made: dict[int, Profile] = {}

    def first(self, most: int) -> list[Profile]:
        """Return the columns that separate the clusters most."""
        explained = self.means.explained
        return [self._profile(int(j)) for j in np.argsort(-explained, kind="stable")[:most]]

    def telling(self, cluster: int) -> list[Profile]:
        """Return the columns in which a cluster stands out most, in the model's distance."""
        away = self.means.away[cluster]
        order = np.argsort(-away * self._weights, kind="stable")
        return [self._profile(int(j)) for j in order if away[j] >= _STANDS_OUT][:_TELLING]

    def _profile(self, place: int) -> Profile:
        if place not in self._made:
            column = None if self._mixed is None else self._mixed[place]
            self._made[place] = profile_of(
                self.names[place], place, column, self.means, self._sampled
            )
        return self._made[place]


def _title_of(column: Column, seasons: Container[str]) -> str:
    """Return what a report calls a mixed column; `seasons` are the dates that have a season."""
    if column.kind == "trend":
        return f"{column.source} (date)" if column.source in seasons else column.source
    return f"{column.source} (time of the year)" if column.is_season else column.name


def _paths(bars: Histograms, own: NDArray[np.float64]) -> list[tuple[str, str]]:
    """Return the outlines of the histograms of all rows and of a cluster, drawn to one scale."""
    highest = max(bars.overall.max(), own.max(), 1e-9)
    width = _WIDTH / len(own)
    gap = width / 8 if bars.separate else 0.0

    def outline(shares: NDArray[np.float64]) -> str:
        parts = []
        for place, share in enumerate(shares):
            top = _HEIGHT * (1 - share / highest)
            left, right = place * width + gap, (place + 1) * width - gap
            start = f"M{left:.4g} {_HEIGHT}" if gap or not place else ""
            end = f"V{_HEIGHT}Z" if gap or place == len(shares) - 1 else ""
            parts.append(f"{start}V{top:.3g}H{right:.4g}{end}")
        return "".join(parts)

    return [("all", outline(bars.overall)), ("own", outline(own))]


def _reasons(look: Any) -> str:
    reasons = "; ".join(look.reasons[:_MOST_REASONS]) or "nothing unusual"
    more = len(look.reasons) - _MOST_REASONS
    return f"{reasons}; and {more:,} more" if more > 0 else reasons


def _in_words(
    summary: Mapping[str, Any],
    columns: _Columns | None,
    telling: Mapping[int, list[Profile]],
    separation: Separation | None,
    stability: NDArray[np.float64] | None,
) -> str:
    """Return the first paragraph."""
    titles = words.cluster_titles(summary)
    said = [words.of_sizes(summary, titles), words.of_trimmed(summary)]
    if columns is not None and summary["n_clusters"] > 1:
        said += [
            words.of_columns(columns.names, columns.means),
            words.of_clusters(titles, columns.means, telling),
        ]
    said += [words.of_separation(separation)]
    if summary["n_clusters"] > 1:
        said += [words.of_stability(stability, titles)]
    return " ".join(filter(None, said))


def _caption(
    model: Any, summary: Mapping[str, Any], rows: list[_Row], separation: Separation | None
) -> str:
    k = summary["n_clusters"]
    caption = f"{counted(k, 'cluster')}, the largest first."
    if len(rows) < k:
        caption += f" The {k - len(rows):,} smallest are not listed."
    if rows[0].stability is not None:
        caption += (
            " Stability is the mean Jaccard similarity with the most similar cluster of fits to "
            "bootstrap samples: 1 where a cluster always comes back."
        )
    if separation is not None and separation.tells:
        caption += " A row is clearly in its cluster if " + (
            "its probability is at least 90%."
            if separation.by_probability
            else "every other centre is at least twice as far."
        )
    if getattr(model, "trim", 0.0) and has_means_of_fit(model):
        caption += " Means, those of all rows too, leave out the rows that the fit trimmed."
    if "updates_" in vars(model) and has_means_of_fit(model) and not hasattr(model, "covariances_"):
        caption += " Means count each row in the cluster that it had in its fit or update."
    if hasattr(model, "covariances_"):
        caption += (
            " Means, and how much of a column clusters account for, weigh each row by its "
            "probability of each cluster, so the means of rows with one label differ."
        )
    return caption


def _about_cards(rows: list[_Row], columns: _Columns | None) -> str:
    if columns is None:
        return ""
    carded = sum(row.telling is not None for row in rows)
    some = "" if carded == len(rows) else f"The {carded} largest clusters are shown. "
    return (
        f"{some}Each cluster is described by the columns in which it is farthest from the average, "
        "in the units of the table."
    )


def _about_columns(means: Means | None, sampled: Sampled | None) -> str:
    if means is None:
        return ""
    said = "Columns in which clusters are farther apart come first."
    if (more := len(means.starts) - _MOST_COLUMNS) > 0:
        said += f" {counted(more, 'further column')} of {len(means.starts):,} are not shown."
    if sampled is not None:
        said += (
            " Brackets hold the ends of the middle half of a cluster's values, with their median "
            "where it is far from the mean. Where most values are 0, they hold the share of the "
            "rows with other values. Coloured bars are the cluster's rows, grey bars all rows."
        )
    if means.what == WEIGHTED:
        said += " Means and shares of levels count rows by their weights; all else counts rows."
    return said


def _origin(summary: Mapping[str, Any], sampled: Sampled | None) -> str:
    if sampled is None:
        return "A run folder does not keep rows of the data, so no figure shows them."
    n_rows = len(sampled.rows)
    rows = "all rows"
    if n_rows < summary["n_rows"]:
        rows = f"{counted(n_rows, 'row')} drawn at random"
    return f"Distributions, figures of rows and the spread of the columns are from {rows}."


def _facts(
    model: Any, summary: Mapping[str, Any], changed: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return names and values of facts about the model and the fit."""
    facts = {
        "model": summary["model"],
        "data": summary["input"],
        "shape": f"{summary['n_rows']:,} rows × {summary['n_features']:,} features",
        "parameters given": ", ".join(f"{k}={_brief(v)}" for k, v in changed.items()) or "none",
        "fit": f"{counted(summary['n_iter'], 'iteration')}, "
        f"{summary['n_passes']:,} passes over the data, {readable_seconds(summary['seconds'])}",
        **_of_features(model, summary),
        "peak memory": readable_bytes(summary["peak_memory_bytes"]),
        "made": f"{summary['created'].replace('T', ' ')} by daskmm {summary['daskmm']}",
    }
    return list(facts.items())


def _found(model: Any, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return numbers that only readers of the method's papers understand."""
    found = {}
    if "inertia" in summary:
        inertia, weight = summary["inertia"], model.cluster_sizes_.sum()
        found["cost per row"] = _number(None if inertia is None else inertia / max(weight, 1e-300))
        found["inertia"] = _number(inertia)
        found["objective at the end"] = _number(summary["objective"])
        found["power s at the end"] = "−∞" if summary["s"] is None else _number(summary["s"])
    if "log_likelihood" in summary:
        found["log-likelihood per row"] = _number(summary["log_likelihood"])
    for name, title in (("bandwidth", "bandwidth"), ("lam", "penalty λ")):
        if name in summary:
            found[title] = "∞" if summary[name] is None else _number(summary[name])
    if explained := features_explained(model):
        found["largest gains beyond noise"] = ", ".join(explained)
    if "gram" in summary:
        found["Gram matrix"] = summary["gram"]
    if len(getattr(model, "kernel_weights_", ())) > 1:
        found["heaviest kernels"] = _kernels(model)
    return found


def _of_features(model: Any, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the scale of the features, and which of them matter."""
    found = {}
    if (scale := scale_in_words(model)) is not None:
        found["features"] = scale
    if "features_found" in summary:
        found["features with more than an equal share of the weight"] = (
            listed(summary["features_found"]) or ALIKE
        )
    return found


def _number(value: Any) -> str:
    """Format a number; None stands for a number that is not finite."""
    return "not finite" if value is None else readable_number(value)


def _brief(value: Any) -> str:
    """Format a parameter for one line."""
    if isinstance(value, list) and len(value) > _MOST_ITEMS:
        width = f" × {len(value[0]):,}" if isinstance(value[0], list) else ""
        return f"an array of {len(value):,}{width}"
    return _shortened(str(value))


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"


def _kernels(model: Any) -> str:
    order = np.argsort(-model.kernel_weights_, kind="stable")[:_MOST_KERNELS]
    return "; ".join(
        f"{_kernel(model.kernels_[index])}: {model.kernel_weights_[index]:.2f}" for index in order
    )


def _kernel(kernel: Kernel) -> str:
    if kernel.name == "polynomial":
        return f"polynomial of degree {kernel.degree:g}"
    wide = kernel.name in ("rbf", "laplacian", "angular")
    return f"{kernel.name}, bandwidth {kernel.bandwidth:.3g}" if wide else kernel.name
