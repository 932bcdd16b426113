"""Pictures: that they are drawn, show what they should, and stay readable."""

import logging
import sys
import threading

import dask.array as da
import dask.dataframe as dd
import matplotlib
import numpy as np
import pandas as pd
import pytest
import zarr
from _support import fit_recording, raise_if_computes
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError

from daskmm import (
    EntropyPowerKMeans,
    GaussianMixture,
    KernelPowerKMeans,
    KMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
    plot,
)
from daskmm.cluster import _progress
from daskmm.cluster._progress import ProgressLine
from daskmm.plot import figures
from daskmm.plot import profiles as profile_plots
from daskmm.plot.figures import cluster_colors
from daskmm.plot.plane import Plane


def blobs(n_rows, n_features, n_clusters, seed=0):
    rng = np.random.default_rng(seed)
    centers = 5 * rng.normal(size=(n_clusters, n_features))
    return centers[np.arange(n_rows) % n_clusters] + rng.normal(size=(n_rows, n_features))


def drawn(figure, path):
    """Colours of the picture, which must not be of one colour."""
    from matplotlib.image import imread

    figure.savefig(path)
    pixels = imread(path)[..., :3]
    assert len(np.unique((255 * pixels).round().astype(int) @ (1, 256, 65536))) > 20
    return pixels


def quick(cls, k, **parameters):
    settings = {"standardize": False} if cls in (KMeans, PowerKMeans) else {}
    return cls(k, n_init=1, random_state=0, **settings | parameters)


@pytest.mark.in_turn("cls")
@pytest.mark.parametrize("cls", [KMeans, PowerKMeans, EntropyPowerKMeans])
def test_annealing_trace_draws_objective_and_power(tmp_path, cls):
    model = quick(cls, 4).fit(blobs(400, 3, 4))
    figure = plot.annealing_trace(model)
    drawn(figure, tmp_path / "trace.png")
    axes = figure.axes
    assert len(axes) == (1 if cls is KMeans else 2)
    np.testing.assert_array_equal(axes[0].lines[0].get_ydata(), model.objective_history_)
    if cls is not KMeans:
        powers = [-record.s for record in model.history_ if np.isfinite(record.s)]
        np.testing.assert_array_equal(axes[1].lines[0].get_ydata(), powers)


def test_annealing_trace_goes_on_from_the_sample_to_all_rows():
    model = quick(PowerKMeans, 3, sample_size=200, eta=1.3).fit(blobs(2000, 2, 3))
    exact = [record.exact for record in model.history_]
    assert 0 < sum(exact) < len(exact)
    objective, power = plot.annealing_trace(model).axes
    drawn_at = np.concatenate([line.get_xdata() for line in objective.lines])
    assert list(np.unique(drawn_at)) == list(range(1, len(exact) + 1))
    # What is drawn of the sample ends where all rows begin, and powers only go on.
    assert exact.index(True) + 1 in [line.get_xdata()[0] for line in objective.lines]
    powers = np.concatenate([line.get_ydata() for line in power.lines])
    assert (np.diff(powers) >= 0).all()


@pytest.mark.long
def test_an_annealing_without_polish_is_drawn(tmp_path):
    model = quick(PowerKMeans, 3, s0=-1, eta=1, polish=False).fit(blobs(300, 2, 3))
    drawn(plot.annealing_trace(model), tmp_path / "trace.png")


@pytest.mark.parametrize(
    "n_features", [5, *(pytest.param(p, marks=pytest.mark.long) for p in (1, 50, 200))]
)
def test_feature_weights_are_drawn_in_order_with_their_gains(tmp_path, n_features):
    X = blobs(300, n_features, 3)
    X[:, n_features // 2 :] = np.random.default_rng(1).normal(size=X[:, n_features // 2 :].shape)
    frame = pd.DataFrame(X, columns=[f"a name rather long {i}" for i in range(n_features)])
    model = quick(EntropyPowerKMeans, 3, lam="0.5*variance", max_iter=20, tol=0).fit(frame)
    figure = plot.feature_weights(model)
    drawn(figure, tmp_path / "weights.png")
    axis = figure.axes[0]
    heights = [bar.get_height() for bar in axis.patches]
    assert len(heights) == min(n_features, 60)
    np.testing.assert_allclose(heights, np.sort(model.feature_weights_)[::-1][:60])
    labels = [label.get_text() for label in figure.axes[1].get_xticklabels()]
    heaviest = int(np.argmax(model.feature_weights_))
    assert labels[0] == "a name rather lon…"[:18] or labels[0].endswith(str(heaviest))
    assert ("not drawn" in axis.get_title()) == (n_features > 60)
    gains = [bar.get_height() for bar in figure.axes[1].patches]
    order = np.argsort(-model.feature_weights_, kind="stable")[:60]
    np.testing.assert_allclose(gains, model.feature_gains_[order])


def test_features_of_equal_weight_are_drawn_in_the_order_of_their_gains():
    model = quick(EntropyPowerKMeans, 3, lam=np.inf).fit(blobs(300, 5, 3))
    gains = [bar.get_height() for bar in plot.feature_weights(model).axes[1].patches]
    np.testing.assert_allclose(gains, np.sort(model.feature_gains_)[::-1])
    shift = WeightedBlurringMeanShift(0.1).fit(blobs(100, 5, 3))
    assert len(plot.feature_weights(shift).axes) == 1


def test_a_model_without_feature_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match="KMeans has no feature weights"):
        plot.feature_weights(quick(KMeans, 2).fit(blobs(50, 2, 2)))


@pytest.mark.parametrize(
    ("n_features", "k"),
    [
        (1, 3),
        pytest.param(2, 1, marks=pytest.mark.long),
        pytest.param(2, 2, marks=pytest.mark.long),
        pytest.param(3, 10, marks=pytest.mark.long),
        (20, 25),
        pytest.param(10, 100, marks=pytest.mark.long),
        pytest.param(8, 120, marks=pytest.mark.long),
    ],
)
def test_projection_numbers_clusters_unless_they_are_many(tmp_path, n_features, k):
    X = blobs(1500, n_features, k)
    model = quick(KMeans, k, init=X[:k]).fit(X)
    figure = plot.projection(model, X)
    drawn(figure, tmp_path / "projection.png")
    numbers = {text.get_text() for text in figure.axes[0].texts}
    assert numbers == ({str(j) for j in np.unique(model.labels_)} if k <= 100 else set())


@pytest.mark.parametrize("missing", ["error", "partial"])
def test_frames_are_drawn_without_warnings(missing):
    frame = pd.DataFrame(blobs(60, 3, 2), columns=["a", "b", "c"])
    frame = frame.assign(b=frame["b"].round().astype("Int64"), c=frame["c"] > 0)
    if missing == "partial":
        frame.loc[4, "b"] = pd.NA
    model = quick(KMeans, 2, missing=missing).fit(frame)
    figure = plot.projection(model, frame.assign(name="other column"))
    assert len(figure.axes[0].collections[0].get_offsets()) == 60
    plot.cluster_profiles(model, frame)
    with pytest.raises(ValueError, match="names"):
        plot.projection(model, frame.rename(columns={"a": "d"}))


def test_rows_far_outside_do_not_squeeze_the_clusters(tmp_path, caplog):
    X = blobs(1500, 3, 4)
    model = quick(KMeans, 4).fit(X)
    whole = plot.projection(model, X).axes[0]
    spans = np.diff([whole.get_xlim(), whole.get_ylim()]).max()
    assert "outside" not in whole.get_title()
    far = np.vstack([X, np.full((3, 3), 500.0), np.full((2, 3), -700.0)])
    figure = plot.projection(model, far, model.predict(far))
    drawn(figure, tmp_path / "projection.png")
    assert not caplog.text
    (axis,) = figure.axes
    assert np.diff([axis.get_xlim(), axis.get_ylim()]).max() < 3 * spans
    assert "1,505 rows, 5 far outside" in axis.get_title()


def test_rows_without_values_are_not_drawn():
    X = np.array([[0.0, 0.0], [1.0, np.nan], [np.nan, np.nan], [9.0, 8.0], [8.0, 9.0]])
    model = KMeans(2, missing="partial", empty_rows="label", random_state=0).fit(X)
    assert model.labels_[2] == -1
    for labels in (None, model.labels_):
        points = plot.projection(model, X, labels).axes[0].collections[0].get_offsets()
        assert len(points) == 4
        assert np.isfinite(points).all()


def test_projection_shows_clusters_that_noise_hides(tmp_path):
    rng = np.random.default_rng(0)
    truth = np.arange(2000) % 4
    X = np.hstack([0.02 * rng.normal(size=(2000, 3)), 50 * rng.normal(size=(2000, 12))])
    X[:, :3] += np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]])[truth]
    model = EntropyPowerKMeans(4, n_init=2, random_state=0).fit(X)
    points = plot.projection(model, X, model.labels_).axes[0].collections[0].get_offsets()
    between = np.var([points[truth == j].mean(axis=0) for j in range(4)], axis=0)
    within = np.mean([points[truth == j].var(axis=0) for j in range(4)], axis=0)
    assert (between > 20 * within).all()


def test_projections_of_cosine_fits_show_the_directions_of_rows_of_any_length():
    rng = np.random.default_rng(0)
    rows = np.eye(6)[np.arange(300) % 4] + 0.1 * rng.normal(size=(300, 6))
    model = KMeans(4, distortion="cosine", random_state=0).fit(rows)
    long = rows * rng.lognormal(3, 1, size=(300, 1))
    short, drawn = (Plane.of(model, each, model.labels_) for each in (rows, long))
    np.testing.assert_allclose(drawn.points, short.points, atol=1e-9)
    own = np.linalg.norm(drawn.points[:, None] - drawn.centers, axis=2).argmin(axis=1)
    assert (own == model.labels_).mean() > 0.6  # two axes show four clusters


def test_colors_differ_between_neighbours():
    for k in (3, 10, 11, 100):
        colors = cluster_colors(k)
        assert colors.shape[0] == k
        assert len(np.unique(colors, axis=0)) == k


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"daskmm\[plot\]"):
        plot.require_matplotlib()


class Stream(list):
    """A text stream that remembers, terminal or not."""

    def __init__(self, terminal):
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.append(text)

    def flush(self):
        pass


def test_progress_on_a_terminal_is_one_line():
    stream = Stream(terminal=True)
    with ProgressLine("fit", 300, 8000, stream, interval=0) as progress:
        model = quick(PowerKMeans, 3, callbacks=[progress]).fit(blobs(500, 2, 3))
    text = "".join(stream)
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert text.count("\r") >= model.n_iter_


def test_progress_on_a_narrow_terminal_ends_with_the_last_part_that_fits(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream = Stream(terminal=True)
    line = ProgressLine("fit", 300, 8000, stream, interval=0)
    line._show("fit: iteration 1/300 · about 1 min 2 s left · s −1 · 2 passes")
    line._show("x" * 60)
    assert stream == ["\rfit: iteration 1/300\x1b[K", f"\r{'x' * 39}\x1b[K"]


def test_what_is_logged_meanwhile_has_lines_of_its_own():
    for terminal, clear in ((True, "\r\x1b[K"), (False, "")):
        stream = Stream(terminal)
        with ProgressLine("fit", 300, 8000, stream):
            logging.getLogger("daskmm").info("waiting for %s", "a lock")
        logging.getLogger("daskmm").warning("afterwards")
        assert stream[1] == f"{clear}fit: waiting for a lock\n"
        assert "afterwards" not in "".join(stream)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_moves_on_samples_before_the_table_is_polished(terminal):
    stream = Stream(terminal)
    with ProgressLine("fit", 300, 8000, stream, interval=0) as progress:
        model = PowerKMeans(3, sample_size=100, callbacks=[progress], random_state=0)
        model.fit(blobs(500, 2, 3))
    lines = "".join(stream).replace("\r", "\n").splitlines()
    first = next(i for i, line in enumerate(lines) if "iteration 1/300" in line)
    for words in ("first pass 0%", "starting centres 50%", "annealing 100%", "recombination"):
        assert any(words in line and " left" in line for line in lines[:first])
    assert " left" in lines[first]


def test_the_line_is_refreshed_while_a_stage_reports_nothing(monkeypatch):
    monkeypatch.setattr(_progress, "_TICK", 0.0)
    shown = threading.Event()

    class Watched(Stream):
        def write(self, text):
            if "bandwidth 0%" in text and "left" in text:
                shown.set()

    with ProgressLine("fit", 300, None, Watched(True), interval=0) as progress:
        progress.expect({"bandwidth": 9.0}, 0.0)
        progress.left.follow("bandwidth", None, 0.0)
        assert shown.wait(60)


def test_progress_elsewhere_is_a_line_every_few_seconds():
    stream = Stream(terminal=False)
    with ProgressLine("fit", 300, 8000, stream) as progress:
        model = quick(PowerKMeans, 3, callbacks=[progress]).fit(blobs(500, 2, 3))
    lines = "".join(stream).splitlines()
    assert len(lines) == 2
    assert lines[0] == "fit: first look at the data"
    for part in (f"iteration {model.n_iter_}/300", "s −∞", "objective", "passes", "/s", "about"):
        assert part in lines[1]


def test_progress_ends_its_line_at_an_error_and_needs_no_bytes():
    stream = Stream(terminal=True)
    with pytest.raises(ValueError, match="3 to 2"), ProgressLine("fit", 9, None, stream):
        raise ValueError("3 to 2")
    assert "".join(stream).endswith("\n")
    model = quick(PowerKMeans, 3).fit(blobs(500, 2, 3))
    line = ProgressLine("fit", 9, None, stream).describe(model.history_[0])
    assert "B/s" not in line
    assert "s -1" in line


@pytest.mark.parametrize(
    ("n_features", "k"), [(1, 2), (5, 3), pytest.param(2000, 100, marks=pytest.mark.long)]
)
def test_cluster_profiles_draw_the_most_separate_columns_and_all_sizes(tmp_path, n_features, k):
    X = blobs(400, n_features, k)
    model = quick(KMeans, k, init=X[:k]).fit(X)
    figure = plot.cluster_profiles(model, X)
    drawn(figure, tmp_path / "profiles.png")
    axis, bars = figure.axes[:2]
    columns = [int(label.get_text()) for label in axis.get_xticklabels()]
    clusters = [int(label.get_text()) for label in axis.get_yticklabels()]
    assert len(columns) == min(n_features, 40)
    assert len(clusters) == k
    image = axis.images[0].get_array()
    for row, cluster in enumerate(clusters):
        for column, feature in enumerate(columns):
            values = X[:, feature]
            members = values[model.labels_ == cluster]
            expected = (members.mean() - values.mean()) / values.std()
            assert image[row, column] == pytest.approx(expected, abs=1e-6)
    sizes = np.bincount(model.labels_, minlength=k)
    np.testing.assert_array_equal([bar.get_width() for bar in bars.patches], sizes[clusters])
    assert (np.diff(sizes[clusters]) <= 0).all()
    left_out = figure.get_suptitle()
    assert ("features not drawn" in left_out) == (n_features > 40)


def test_profiles_put_the_features_first_that_separate():
    X = np.random.default_rng(0).normal(size=(300, 6))
    X[:150, 4] += 9
    X[:, 5] = 7  # constant
    X[:, 1] *= 1000  # wide, but the same in both clusters
    means = np.stack([X[:150].mean(axis=0), X[150:].mean(axis=0)])
    model = quick(KMeans, 2, standardize=True, init=means).fit(X)
    profiles = profile_plots.Profiles.of(model, X)
    assert np.argmax(profiles.separation) == 4
    truth = X[:150].mean(axis=0) - X[150:].mean(axis=0)
    explained = (truth / 2) ** 2 / np.maximum(X.var(axis=0), 1e-12)
    np.testing.assert_allclose(profiles.separation[:5], explained[:5], rtol=1e-6)
    assert (profiles.deviations[:, 5] == 0).all()


def test_a_model_that_is_not_fitted_has_no_profiles():
    with pytest.raises(NotFittedError):
        plot.cluster_profiles(KMeans(3))


def test_profiles_without_a_sample_use_what_the_model_knows():
    X = blobs(300, 4, 3)
    scaled = profile_plots.Profiles.of(quick(KMeans, 3, standardize=True).fit(X))
    np.testing.assert_allclose(
        scaled.deviations, profile_plots.Profiles.of(quick(KMeans, 3).fit(X), X).deviations
    )
    plain = profile_plots.Profiles.of(quick(KMeans, 3).fit(X))
    assert "means" in plain.unit
    np.testing.assert_allclose(plain.deviations.std(axis=0), 1)
    kernel = KernelPowerKMeans(3, random_state=0).fit(X)
    with pytest.raises(ValueError, match="give a sample"):
        plot.cluster_profiles(kernel)
    means = profile_plots.Profiles.of(kernel, X, kernel.labels_).centers
    expected = [X[kernel.labels_ == cluster].mean(axis=0) for cluster in range(3)]
    np.testing.assert_allclose(means, expected)
    gram = KernelPowerKMeans(3, kernel="precomputed", random_state=0).fit(X @ X.T)
    with pytest.raises(ValueError, match="has no features"):
        plot.cluster_profiles(gram)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_profiles_are_those_of_the_rows_that_sizes_count():
    wine = load_wine(as_frame=True).data
    for model in (KMeans(4, max_iter=1), EntropyPowerKMeans(4, lam=1.0, max_iter=9, polish=False)):
        labels = model.set_params(n_init=1, random_state=0).fit(wine).labels_
        profiles = profile_plots.Profiles.of(model, wine)
        means = wine.groupby(labels).mean()
        away = (means - wine.mean()) / wine.std(ddof=0)
        np.testing.assert_allclose(profiles.deviations, away, rtol=1e-9, atol=1e-9)
        assert profiles.sizes.tolist() == np.bincount(labels, minlength=4).tolist()


def test_profiles_compute_no_lazy_labels():
    X = blobs(300, 4, 3)
    model = quick(KMeans, 3).fit(da.from_array(X, chunks=(100, 4)))
    with raise_if_computes():
        figure = plot.cluster_profiles(model, X, model.predict(X))
    widths = sorted(bar.get_width() for bar in figure.axes[1].patches)
    assert widths == sorted(np.bincount(model.labels_.compute()))
    fractions = np.full(300, 0.7)
    model.fit(da.from_array(X, chunks=(100, 4)), sample_weight=da.from_array(fractions, chunks=100))
    assert not plot.cluster_profiles(model).axes[1].get_visible()


@pytest.mark.long
def test_profiles_of_a_lazy_fit_of_mean_shift_have_its_sizes():
    X = np.random.default_rng(0).normal(size=(300, 3))
    X[:120] += 9.0
    lazy, weights = da.from_array(X, chunks=(100, 3)), da.full(300, 2.0, chunks=100)
    model = WeightedBlurringMeanShift(random_state=0).fit(lazy)
    assert sorted(profile_plots.Profiles.of(model).sizes) == [120, 180]
    assert profile_plots.Profiles.of(model.fit(lazy, sample_weight=weights)).sizes is None


def test_profiles_of_a_mixture_of_incomplete_rows_start_from_the_mean_of_their_values():
    X = blobs(400, 3, 2)
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    X = X[~np.isnan(X).all(axis=1)]
    model = GaussianMixture(2, missing="partial", random_state=0).fit(X)
    profiles = profile_plots.Profiles.of(model)
    assert profiles.unit == "standard deviations of the data"
    expected = (model.means_ - np.nanmean(X, axis=0)) / np.nanstd(X, axis=0)
    np.testing.assert_allclose(profiles.deviations, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["array", "frame", "zarr"])
def test_few_rows_of_a_lazy_table_are_drawn(kind, monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "_MOST_ROWS", 20)
    X = blobs(300, 4, 3)
    table = da.from_array(X, chunks=(70, 4))
    if kind == "frame":
        table = dd.from_pandas(pd.DataFrame(X, columns=[*"abcd"]), npartitions=3)
    if kind == "zarr":
        table.to_zarr(tmp_path / "rows")
        table = zarr.open_array(tmp_path / "rows", mode="r")
    model = quick(KMeans, 3).fit(table)
    for labels in (None, model.labels_):
        points = plot.projection(model, table, labels).axes[0].collections[0].get_offsets()
        rows = X[:: 300 // 20]
        frame = rows if kind != "frame" else pd.DataFrame(rows, columns=[*"abcd"])
        expected = plot.projection(model, frame).axes[0].collections[0].get_offsets()
        np.testing.assert_array_equal(points, expected)
    profiles = profile_plots.Profiles.of(model, table)
    np.testing.assert_allclose(
        profiles.deviations, (profiles.centers - rows.mean(axis=0)) / rows.std(axis=0)
    )


@pytest.mark.long
def test_names_are_no_formulas(tmp_path):
    X = blobs(200, 3, 2)
    names = [r"price $\foo$", "a\nb", "$x$ & <b>"]
    model = quick(EntropyPowerKMeans, 2, max_iter=9, tol=0).fit(pd.DataFrame(X, columns=names))
    for figure in (plot.feature_weights(model), plot.cluster_profiles(model)):
        drawn(figure, tmp_path / "names.png")


def cut_off(figure):
    """Texts that are drawn, but not within the figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    boxes = []

    def draw(text, renderer):
        if text.get_text().strip():
            boxes.append((text.get_text(), text.get_window_extent(renderer).extents))
        return usual(text, renderer)

    usual = Text.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        FigureCanvasAgg(figure).draw()
    assert boxes
    width, height = figure.bbox.size
    return [
        (text, box)
        for text, box in boxes
        if min(box[:2]) < -0.5 or box[2] > width + 0.5 or box[3] > height + 0.5
    ]


@pytest.mark.long
def test_no_label_is_cut_off():
    """Of the figures of the table in README, and of one with many clusters and long names."""
    wine = load_wine(as_frame=True).data
    long = pd.DataFrame(blobs(300, 40, 30)).rename(columns=lambda number: f"{number} {'W' * 20}")
    for rows, k, standardize in ((wine, 3, True), (long, 30, False)):
        model = quick(EntropyPowerKMeans, k, lam=0.5, max_iter=4, standardize=standardize)
        fit_recording(model, rows)
        for figure in (
            plot.cluster_profiles(model, rows),
            plot.cluster_profiles(model),
            plot.feature_weights(model),
            plot.annealing_trace(model),
            plot.projection(model, rows.to_numpy(), model.labels_),
        ):
            assert not cut_off(figure), figure.get_label()


@pytest.mark.long
def test_names_that_the_font_lacks_are_drawn_by_another_or_escaped(tmp_path):
    """Another font that is installed has some of the letters; no font has the others."""
    names = ["\u1d81 one", "\U00013000\u6f22"]  # STIX, which matplotlib brings, has the first
    model = quick(EntropyPowerKMeans, 2, lam=0.5)
    model.fit(pd.DataFrame(blobs(60, 2, 2), columns=names))
    figure = plot.feature_weights(model)
    drawn(figure, tmp_path / "weights.png")  # warnings would be errors
    labels = {
        label.get_text(): label.get_fontfamily() for label in figure.axes[-1].get_xticklabels()
    }
    assert names[0] in labels
    assert len(labels[names[0]]) > len(matplotlib.rcParams["font.family"])
    (other,) = set(labels) - {names[0]}
    assert other.startswith("\\U00013000")
    with figures.drawn_with_fonts_of_readers():
        labels = plot.feature_weights(model).axes[-1].get_xticklabels()
    assert {label.get_text() for label in labels} == set(names)


def test_pictures_say_what_they_show():
    X = blobs(400, 5, 3)
    model = EntropyPowerKMeans("auto", n_init=1, random_state=0).fit(X)
    assert "objective" in plot.annealing_trace(model).get_label()
    assert "weighted alike" in plot.feature_weights(model).get_label()
    model.feature_weights_ = np.array([0.6, 0.1, 0.1, 0.1, 0.1])
    assert "weigh more than an equal share" in plot.feature_weights(model).get_label()
    assert "400 rows" in plot.projection(model, X).get_label()
    figure = plot.n_clusters_path(model.n_clusters_path_)
    assert all(tick == int(tick) for tick in figure.axes[0].get_xticks())
    label = figure.get_label()
    assert "3 clusters are found" in label
    assert "Two of 3 clusters overlap by 0." in label
    assert "is chosen" in plot.lam_path(model.lam_path_).get_label()
    profiles = plot.cluster_profiles(model, X).get_label()
    assert "3 clusters of 3 in 5 features of 5" in profiles
    assert "Clusters have" in profiles


def test_projection_of_one_wide_feature_is_no_line():
    X, model = blobs(300, 3, 3), quick(KMeans, 3, standardize=False)
    assert plot.projection(model.fit(X), X).axes[0].get_aspect() == 1
    X[:, 0] *= 1000
    assert plot.projection(model.fit(X), X).axes[0].get_aspect() == "auto"


@pytest.mark.parametrize(
    "draw", [plot.lam_path, plot.bandwidth_path, plot.n_clusters_path, plot.distortion_choice]
)
@pytest.mark.parametrize("wrong", [None, KMeans(2)])
def test_paths_of_other_kinds_are_refused_in_words(draw, wrong):
    with pytest.raises(TypeError, match=r"Expected a \w+, got \w+. It is .*(selection|model)"):
        draw(wrong)


def test_models_that_are_not_fitted_are_not_drawn():
    with pytest.raises(NotFittedError):
        plot.annealing_trace(KMeans(2))
    with pytest.raises(TypeError, match="estimator"):
        plot.annealing_trace(None)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_projection_of_mixed_columns_is_refused_as_such(lazy):
    frame = pd.DataFrame({"x": np.arange(60.0), "kind": ["a", "b"] * 30})
    model = KMeans(2, distortion="mixed", random_state=0).fit(frame)
    sample = dd.from_pandas(frame, npartitions=2) if lazy else frame
    with pytest.raises(ValueError, match="Mixed columns are not drawn"):
        plot.projection(model, sample)
