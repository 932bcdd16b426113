"""Write the report of a fit: one self-contained HTML page without scripts."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.data.names import ALIKE, counted, features_explained, listed, spaced
from daskmm.numerics.kernels import Kernel
from daskmm.plot.profiles import Profiles
from daskmm.report.figures import Picture, Sampled, drift_picture, inline_svg, pictures
from daskmm.report.style import STYLE
from daskmm.storage.readable import readable_bytes, readable_seconds
from daskmm.storage.strict_json import plain

# Largest numbers of rows of the table of clusters, and of features named in each row; of looks of a
# monitor; of kernels; of items of an array; of characters of a parameter or feature name.
_MOST_ROWS, _TELLING = 500, 3
_MOST_LOOKS = 50
# Marks around the section about drift, which is replaced by a later one.
_DRIFT = "<!-- drift -->"
_MOST_KERNELS = 4
_MOST_ITEMS, _MOST_LETTERS = 12, 60


def report_page(model: Any, summary: Mapping[str, Any], sampled: Sampled | None) -> str:
    """Return the report of a fit as HTML.

    Parameters
    ----------
    model : fitted estimator
        The model; lazy labels are not computed.
    summary : mapping
        The content of ``summary.json`` in the run folder.
    sampled : Sampled or None
        Rows of the data with their clusters; without them, figures of rows are left out.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    profiles = _profiles(model, summary, sampled)
    drawn = pictures(model, sampled, profiles)
    title = _headline(summary)
    body = "\n".join(
        [
            _header(title, summary),
            "<main>",
            _warnings(summary["warnings"]),
            *(_figure(picture) for picture in drawn),
            _clusters(
                summary["cluster_sizes"],
                profiles,
                summary.get("cluster_names"),
                getattr(model, "stability_", None),
            ),
            _fitted(model, summary),
            "</main>",
            _footer(summary, sampled),
        ]
    )
    return _PAGE.format(title=_text(f"{title} · {summary['model']}"), style=STYLE, body=body)


def with_drift(page: str, monitor: Any) -> str:
    """Return a report with a section about the batches that a monitor compared.

    Parameters
    ----------
    page : str
        The page that `report_page` returned; a former section is replaced.
    monitor : Monitor
        A monitor that has compared at least one batch.
    """
    page = "".join(page.split(_DRIFT)[::2])
    looks = "\n".join(_look(look) for look in monitor.looks[-_MOST_LOOKS:])
    section = (
        '<section>\n<div class="wide" tabindex="0" role="region" aria-label="Table of looks">\n'
        '<table class="looks">\n<thead><tr><th scope="col" class="number">look</th>'
        '<th scope="col" class="number">rows</th><th scope="col" class="number">cost / reference'
        '</th><th scope="col">differs in</th></tr></thead>\n'
        f"<tbody>\n{looks}\n</tbody>\n</table>\n</div>\n</section>"
    )
    before, main, after = page.rpartition("</main>")
    parts = before, _DRIFT, _figure(drift_picture(monitor)), "\n", section, "\n", _DRIFT
    return "".join([*parts, main, after])


def _look(look: Any) -> str:
    reasons = "; ".join(look.reasons[:_TELLING]) or "nothing unusual"
    more = len(look.reasons) - _TELLING
    if more > 0:
        reasons += f"; and {more:,} more"
    return (
        f'<tr><th scope="row" class="number">{look.number:,}</th>'
        f'<td class="number">{look.n_rows:,}</td>'
        f'<td class="number">{look.cost / look.reference_cost:.3f}</td>'
        f"<td>{_text(reasons)}</td></tr>"
    )


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def _text(value: Any) -> str:
    """Escape text for HTML; unprintable characters become spaces."""
    return html.escape(spaced(value), quote=True)


def _profiles(model: Any, summary: Mapping[str, Any], sampled: Sampled | None) -> Profiles | None:
    """Compute the cluster profiles; None where they need a sample that is missing."""
    rows, labels = (None, None) if sampled is None else sampled
    try:
        return Profiles.of(model, rows, labels, summary["cluster_sizes"])
    except ValueError:
        return None


def _headline(summary: Mapping[str, Any]) -> str:
    found = counted(summary["n_clusters"], "cluster")
    return f"{found} of {counted(summary['n_rows'], 'row')}"


def _header(title: str, summary: Mapping[str, Any]) -> str:
    numbers = {
        "clusters": f"{summary['n_clusters']:,}",
        "features": f"{summary['n_features']:,}",
        "iterations": f"{summary['n_iter']:,}",
        "passes over the data": f"{summary['n_passes']:,}",
        "time": readable_seconds(summary["seconds"]),
    }
    if "inertia" in summary:
        numbers["cost per row"] = _number(_per_row(summary))
    if "log_likelihood" in summary:
        numbers["log-likelihood per row"] = _number(summary["log_likelihood"])
    if "features_found" in summary:
        n_found = len(summary["features_found"])
        numbers["features that matter"] = f"{n_found:,}" if n_found else ALIKE
    boxes = "\n".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
        for name, value in numbers.items()
    )
    return (
        f"<header>\n<h1>{_text(title)}</h1>\n"
        f'<p class="quiet"><span>{_text(summary["model"])}</span> of '
        f'<span class="path">{_text(summary["input"])}</span></p>\n'
        f'<dl class="numbers">\n{boxes}\n</dl>\n</header>'
    )


def _per_row(summary: Mapping[str, Any]) -> float | None:
    inertia = summary["inertia"]
    return None if inertia is None else inertia / max(summary["n_rows"], 1)


def _number(value: Any) -> str:
    """Format a number with few digits; None stands for a number that is not finite."""
    if value is None:
        return "not finite"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _warnings(notes: list[str]) -> str:
    if not notes:
        return ""
    items = "\n".join(f"<li>{_text(note)}</li>" for note in notes)
    return (
        '<section class="warning" role="note">\n<h2>What to know first</h2>\n'
        f"<ul>\n{items}\n</ul>\n</section>"
    )


def _figure(picture: Picture) -> str:
    """Return a section with a figure, which scrolls by itself on narrow screens."""
    return (
        f'<section>\n<figure id="{picture.name}" aria-labelledby="{picture.name}-title">\n'
        f'<h2 id="{picture.name}-title">{_text(picture.title)}</h2>\n'
        f"<figcaption>{_text(picture.caption)}</figcaption>\n"
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(picture.title)}">\n'
        f"{inline_svg(picture.figure, picture.name)}\n</div>\n</figure>\n</section>"
    )


def _clusters(
    sizes: list[int],
    profiles: Profiles | None,
    names: list[str] | None,
    stability: NDArray[np.float64] | None,
) -> str:
    """Return a table of the clusters, the largest first."""
    order = np.argsort(-np.asarray(sizes), kind="stable")[:_MOST_ROWS]
    total, largest = max(sum(sizes), 1), max([1, *sizes])
    heads = "" if names is None else '<th scope="col">name</th>'
    heads += "" if stability is None else '<th scope="col" class="number">stability</th>'
    heads += "" if profiles is None else '<th scope="col">stands out in</th>'
    rows = []
    for cluster in order:
        size = sizes[cluster]
        telling = "" if profiles is None else f"<td>{_telling(profiles, int(cluster))}</td>"
        rows.append(
            f'<tr><th scope="row" class="number">{cluster}</th>'
            f'<td class="number">{size:,}</td><td class="number">{size / total:.1%}</td>'
            f'<td class="bar"><span class="share" style="--part: {size / largest:.1%}"></span></td>'
            f"{'' if names is None else _name(names[cluster])}"
            f"{'' if stability is None else _stability(float(stability[cluster]))}{telling}</tr>"
        )
    caption = f"{counted(len(sizes), 'cluster')}, the largest first."
    if len(order) < len(sizes):
        caption += f" The {len(sizes) - len(order):,} smallest are not listed."
    if stability is not None:
        caption += (
            " Stability is the mean Jaccard similarity with the most similar cluster of fits to "
            "bootstrap samples: 1 where a cluster always comes back."
        )
    if profiles is not None:
        caption += (
            f" A cluster stands out in the features in which it is farthest from the mean of the "
            f"data; the distance beside each is in {profiles.unit}."
        )
    return (
        f'<section>\n<h2>Clusters</h2>\n<p class="quiet" id="clusters">{_text(caption)}</p>\n'
        '<div class="wide" tabindex="0" role="region" aria-label="Table of clusters">\n'
        '<table class="clusters" aria-describedby="clusters">\n'
        '<thead><tr><th scope="col" class="number">cluster</th><th scope="col" class="number">'
        'rows</th><th scope="col" class="number">share</th><td class="bar"></td>'
        f"{heads}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>\n</table>\n</div>\n"
        "</section>"
    )


def _name(name: str) -> str:
    return f"<td>{_text(_shortened(name))}</td>"


def _stability(value: float) -> str:
    return f'<td class="number">{value:.2f}</td>'


def _telling(profiles: Profiles, cluster: int) -> str:
    """List the features in which a cluster deviates most from the mean, and by how much."""
    parts = []
    for feature in profiles.telling(cluster, _TELLING):
        away = float(profiles.deviations[cluster, feature])
        side = "above" if away > 0 else "below"
        parts.append(
            f'<span class="feature">{_text(_shortened(profiles.names[feature]))} '
            f'<span class="{side}">{_signed(away)}</span></span>'
        )
    return " ".join(parts) or "nothing"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _fitted(model: Any, summary: Mapping[str, Any]) -> str:
    """Return a section about model, data and parameters."""
    parameters = summary["parameters"]
    defaults = plain(type(model)().get_params())
    changed = {k: v for k, v in parameters.items() if v != defaults.get(k)}
    facts = {
        "model": summary["model"],
        "data": summary["input"],
        "shape": f"{summary['n_rows']:,} rows × {summary['n_features']:,} features",
        "parameters given": ", ".join(f"{k}={_brief(v)}" for k, v in changed.items()) or "none",
        **_found(model, summary),
        "peak memory": readable_bytes(summary["peak_memory_bytes"]),
        "made": f"{summary['created'].replace('T', ' ')} by daskmm {summary['daskmm']}",
    }
    return (
        "<section>\n<h2>What was fitted</h2>\n"
        f"{_table(facts.items())}\n<details>\n<summary>all parameters</summary>\n"
        f"{_table((k, _brief(v)) for k, v in parameters.items())}\n</details>\n</section>"
    )


def _brief(value: Any) -> str:
    """Format a parameter for one line."""
    if isinstance(value, list) and len(value) > _MOST_ITEMS:
        width = f" × {len(value[0]):,}" if isinstance(value[0], list) else ""
        return f"an array of {len(value):,}{width}"
    return _shortened(str(value))


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"


def _found(model: Any, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return results of the fit beyond the numbers at the top of the page."""
    found = {}
    if "inertia" in summary:
        found["inertia"] = _number(summary["inertia"])
        found["objective at the end"] = _number(summary["objective"])
        found["power s at the end"] = "−∞" if summary["s"] is None else _number(summary["s"])
    for name, title in (("bandwidth", "bandwidth"), ("lam", "penalty λ")):
        if name in summary:
            found[title] = "∞" if summary[name] is None else _number(summary[name])
    if "features_found" in summary:
        found["features above an equal share"] = listed(summary["features_found"]) or ALIKE
    if explained := features_explained(model):
        found["best explained features"] = ", ".join(explained)
    if "gram" in summary:
        found["Gram matrix"] = summary["gram"]
    if hasattr(model, "kernels_") and len(model.kernel_weights_) > 1:
        found["heaviest kernels"] = _kernels(model)
    if hasattr(model, "standardize_path_"):
        found["features"] = str(model.standardize_path_)
    return found


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


def _table(items: Iterable[tuple[str, Any]]) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>'
        for name, value in items
    )
    return f'<table class="facts">\n<tbody>\n{rows}\n</tbody>\n</table>'


def _footer(summary: Mapping[str, Any], sampled: Sampled | None) -> str:
    if sampled is None:
        rows = "A run folder does not keep rows of the data, so no figure shows them."
    else:
        rows = (
            f"Figures of rows, and the spread of the features, are from "
            f"{counted(len(sampled.rows), 'row')} drawn at random."
        )
    return f"<footer>\n<p>{_text(rows)} Made by daskmm {_text(summary['daskmm'])}.</p>\n</footer>"
