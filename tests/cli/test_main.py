"""Every command, end to end, on small data."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr

import daskmm
from daskmm.cli import demo, run_folder
from daskmm.cli.main import main
from daskmm.cluster._progress import ProgressLine
from daskmm.data.files import open_data
from daskmm.kmeans import updates

K = 4


def reject_constant(name):
    raise AssertionError(f"{name} is no JSON")


def strict(text):
    return json.loads(text, parse_constant=reject_constant)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    centers = 6 * rng.normal(size=(K, 5))
    return centers[np.arange(1200) % K] + rng.normal(size=(1200, 5))


@pytest.fixture
def npy(tmp_path, table):
    np.save(tmp_path / "x.npy", table)
    return str(tmp_path / "x.npy")


@pytest.fixture
def store(tmp_path, table):
    array = zarr.create_array(tmp_path / "x.zarr", shape=table.shape, dtype="f8", chunks=(100, 5))
    array[...] = table
    return str(tmp_path / "x.zarr")


def labels_of(run):
    return zarr.open_array(f"{run}/labels.zarr", mode="r")[...]


def fit(source, out, *options):
    """Fit without what takes longest: the choice of a scale, and pictures."""
    command = ["fit", source, "-k", str(K), "--no-standardize", "--no-pictures"]
    return main([*command, "--out", str(out), *options])


@pytest.mark.parametrize(
    "model",
    ["entropy", *(pytest.param(model, marks=pytest.mark.long) for model in ("power", "kmeans"))],
)
def test_fit_writes_a_run_folder(tmp_path, store, table, capsys, model):
    run = tmp_path / "deep" / "run"
    assert main(["fit", store, "-k", str(K), "--out", str(run), "--model", model]) == 0
    out, err = capsys.readouterr()
    assert "4 clusters of 1,200 rows × 5 features" in out
    assert "iteration" in err
    assert "about" in err
    pictures = {"objective.png", "projection.png"}
    pictures |= {"feature_weights.png"} if model == "entropy" else set()
    files = {path.name for path in run.iterdir()}
    assert files == {"model", "labels.zarr", "summary.json", "centers.csv"} | pictures
    assert all((run / name).stat().st_size > 10_000 for name in pictures)
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    labels = zarr.open_array(run / "labels.zarr", mode="r")
    np.testing.assert_array_equal(labels[...], daskmm.load(run / "model").predict(table))
    np.testing.assert_array_equal(labels[...], daskmm.load(run).predict(table))
    summary = strict((run / "summary.json").read_text())
    assert summary["cluster_sizes"] == np.bincount(labels[...], minlength=K).tolist()
    assert summary["n_rows"] == 1200
    assert set(summary["files"]) == files
    assert summary["history"][-1]["s"] is None
    assert len(summary["history"]) == summary["n_iter"]
    assert ("feature_weights" in summary) == (model == "entropy")
    assert ("feature_gains" in summary) == (model == "entropy")
    header, *centers = (run / "centers.csv").read_text().splitlines()
    of_features = [f"{what}_{feature}" for what in ("mean", "center") for feature in range(5)]
    assert header == ",".join(["cluster,cluster_name,cluster_size,cluster_share", *of_features])
    assert len(centers) == K
    found = np.array([row.rpartition('"')[2].split(",")[-10:] for row in centers], dtype=float)
    of_rows = [table[labels[...] == cluster].mean(axis=0) for cluster in range(K)]
    np.testing.assert_allclose(found[:, :5], of_rows)
    np.testing.assert_array_equal(found[:, 5:], daskmm.load(run / "model").cluster_centers_)
    assert all(f"): {name}\n" in out for name in summary["cluster_names"])


def test_fit_options_reach_the_estimator(tmp_path, npy, capsys):
    options = "--lam 0.7 --s0 -3 --eta 1.2 --init random --n-init 2 --max-iter 60 --tol 1e-3"
    more = "--seed 5 --json --quiet --model entropy"
    assert fit(npy, tmp_path / "run", *options.split(), *more.split()) == 0
    out, err = capsys.readouterr()
    assert err == ""
    summary = strict(out)
    expected = {"lam": 0.7, "s0": -3, "eta": 1.2, "init": "random", "n_init": 2, "max_iter": 60}
    expected |= {"tol": 1e-3, "random_state": 5, "standardize": False, "n_clusters": K}
    assert expected.items() <= summary["parameters"].items()
    assert summary["files"] == ["model", "labels.zarr", "summary.json", "centers.csv"]
    assert "callbacks" not in summary["parameters"]


def test_number_and_penalty_are_chosen_by_auto(tmp_path, table, capsys):
    npy = str(tmp_path / "few.npy")
    np.save(npy, table[:400])
    options = "-k auto --model entropy --lam auto --n-init 1 --quiet --json --no-pictures"
    assert main(["fit", npy, "--out", str(tmp_path / "run"), *options.split()]) == 0
    summary = strict(capsys.readouterr().out)
    assert summary["n_clusters"] == len(summary["cluster_sizes"]) == K
    assert summary["parameters"]["n_clusters"] == summary["parameters"]["lam"] == "auto"
    assert main(["plan", npy, "-k", "auto"]) == 0
    assert "an unknown number of clusters" in capsys.readouterr().out


def test_quiet_commands_print_nothing(tmp_path, npy, capsys):
    assert fit(npy, tmp_path / "run", "--quiet") == 0
    assert main(["predict", str(tmp_path / "run"), npy, "--out", f"{tmp_path}/l", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_fit_can_be_repeated(tmp_path, npy, capsys):
    for name in ("a", "b"):
        assert fit(npy, tmp_path / name, "--json", "--quiet") == 0
    a, b = map(strict, capsys.readouterr().out.splitlines())
    assert a["inertia"] == b["inertia"]
    assert a["parameters"]["random_state"] == 0


def test_predict_writes_the_labels_of_other_rows(tmp_path, npy, store, table, capsys):
    run, labels = tmp_path / "run", tmp_path / "labels.zarr"
    assert fit(npy, run, "--quiet") == 0
    assert main(["predict", str(run), store, "--out", str(labels), "--json"]) == 0
    found = strict(capsys.readouterr().out)
    stored = zarr.open_array(labels, mode="r")
    np.testing.assert_array_equal(stored[...], daskmm.load(run / "model").predict(table))
    assert found["n_rows"] == 1200
    assert found["cluster_sizes"] == np.bincount(stored[...]).tolist()
    assert main(["predict", str(run), store, "--out", str(labels)]) == 2
    assert "exists" in capsys.readouterr().err
    np.save(tmp_path / "few.npy", table[:3])
    assert main(["predict", str(run), f"{tmp_path}/few.npy", "--out", f"{tmp_path}/l2"]) == 0
    assert "3 labels" in capsys.readouterr().out


# dask calls pandas in a way that pandas 3.1 deprecates.
@pytest.mark.filterwarnings("ignore:The inplace keyword")
@pytest.mark.parametrize("kind", [pytest.param("csv", marks=pytest.mark.long), "parquet"])
def test_frames_are_predicted_by_name(tmp_path, table, capsys, kind):
    frame = pd.DataFrame(table, columns=list("abcde")).assign(city="x")
    path = tmp_path / f"x.{kind}"
    write = frame.to_parquet if kind == "parquet" else frame.to_csv
    write(path, index=False)
    assert fit(str(path), tmp_path / "bad") == 2
    message = capsys.readouterr().err
    assert "'city'" in message
    assert "--columns" in message
    assert fit(str(path), tmp_path / "run", "--columns", "e,b,a", "--quiet") == 0
    run = run_folder.open_run(tmp_path / "run")
    assert run.summary["feature_names"] == ["e", "b", "a"]
    turned = tmp_path / f"turned.{kind}"
    write = frame[::-1].to_parquet if kind == "parquet" else frame[::-1].to_csv
    write(turned, index=False)
    assert main(["predict", str(tmp_path / "run"), str(turned), "--out", f"{tmp_path}/l"]) == 0
    labels = zarr.open_array(tmp_path / "l", mode="r")[...]
    np.testing.assert_array_equal(labels[::-1], labels_of(tmp_path / "run"))
    capsys.readouterr()


def test_inspect_prints_what_a_run_found(tmp_path, npy, capsys):
    assert fit(npy, tmp_path / "run", "--model", "entropy", "--quiet") == 0
    assert main(["inspect", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    for part in ("EntropyPowerKMeans of ", "x.npy", "cluster sizes", "annealed from", "inertia"):
        assert part in out
    assert main(["inspect", f"file:{tmp_path}/run", "--json"]) == 0
    assert strict(capsys.readouterr().out)["model"] == "EntropyPowerKMeans"
    path = tmp_path / "run" / "summary.json"
    intact = json.loads(path.read_text())
    for name in ("cluster_sizes", "n_features"):
        path.write_text(json.dumps({**intact, name: {"a": None}}))
        assert main(["inspect", str(tmp_path / "run")]) == 2
        assert "summary.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a run folder"),
        ("{", "damaged"),
        ('{"format": "other", "version": 1}', "not a run folder of daskmm"),
        ('{"format": "daskmm-run", "version": 99}', "version 99"),
    ],
)
def test_inspect_refuses_what_is_not_a_run_folder(tmp_path, capsys, text, message):
    assert main(["inspect", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    assert main(["inspect", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_plan_prints_the_cost_of_a_fit(npy, capsys):
    assert main(["plan", npy, "-k", "3", "--model", "kmeans", "--max-iter", "7"]) == 0
    assert "1,200 rows × 5 features" in capsys.readouterr().out
    assert main(["plan", npy, "-k", "3", "--json"]) == 0
    plan = strict(capsys.readouterr().out)
    assert plan["n_rows"] == 1200
    assert plan["bytes_per_pass"] == 1200 * 40
    assert plan["passes"] <= plan["max_passes"]
    assert plan["seconds"] == pytest.approx(sum(plan["stages"].values()))


def test_warnings_of_a_fit_are_printed_as_lines_and_kept_in_the_summary(tmp_path, npy, capsys):
    assert fit(npy, tmp_path / "run", "--max-iter", "2") == 0
    assert "daskmm: warning: Not converged" in capsys.readouterr().err
    assert "Not converged" in run_folder.open_run(tmp_path / "run").summary["warnings"][0]
    assert main(["inspect", str(tmp_path / "run")]) == 0
    assert "warning: Not converged" in capsys.readouterr().out


def refused(capsys, *arguments):
    """Message of a command that the user has to mend."""
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line != "daskmm: first look at the data"]
    assert out == ""
    assert len(lines) == 1
    assert lines[0].startswith("daskmm: error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-k", "5000"], "n_samples=1200 should be >= n_clusters=5000"),
        (["-k", "0"], "'n_clusters' parameter"),
        (["-k", "2", "--s0", "0.5"], "'s0' parameter"),
        (["-k", "2", "--eta", "0.5"], "'eta' parameter"),
        (["-k", "2", "--lam", "0.5"], "--lam has no meaning for --model power"),
        (["-k", "2", "--model", "entropy", "--lam", "-1"], "'lam' parameter"),
        (["-k", "2", "--model", "kmeans", "--eta", "2"], "--eta has no meaning"),
        (["-k", "two"], "invalid \"auto\" or int value: 'two' (see daskmm fit --help)"),
        (["-k", "auto", "--model", "kernel"], "'n_clusters' parameter"),
        (["-k", "2", "--model", "entropy", "--lam", "some"], "'lam' parameter"),
        (["-k", "2", "--columns", "a"], "no named columns"),
        ([], "arguments are required: -k"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, npy, capsys, options, message):
    assert message in refused(capsys, "fit", npy, *options, "--out", tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_inputs_that_do_not_fit_are_refused(tmp_path, store, table, capsys):
    out = ["-k", 2, "--out", tmp_path / "run"]
    assert "does not exist" in refused(capsys, "fit", tmp_path / "no.npy", *out)
    (tmp_path / "bad.zarr").mkdir()
    assert "bad.zarr cannot be read" in refused(capsys, "fit", tmp_path / "bad.zarr", *out)
    (Path(store) / "c" / "7" / "0").write_bytes(b"short")
    assert "x.zarr: rows 0 to 1200 cannot be read" in refused(capsys, "fit", store, *out)
    table = table.copy()
    table[17, 2] = np.nan
    np.save(tmp_path / "nan.npy", table)
    assert "NaN: block 0, row 17" in refused(capsys, "fit", tmp_path / "nan.npy", *out)
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.glob(".run*"))


def test_existing_folder_is_refused_before_anything_is_read(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "empty.npy").touch()
    message = refused(capsys, "fit", tmp_path / "empty.npy", "-k", 2, "--out", tmp_path / "run")
    assert "run exists. Choose another path" in message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("fit nope.csv -k 3 --out r", "nope.csv does not exist."),
        ("fit a.csv --columns x,y,zz -k 3 --out r", "a.csv has no column 'zz'; it has 'x', 'y'."),
        ("fit a.parquet --keep zz --labels l.csv -k 3 --out r", "has no column 'zz'"),
        ("fit parts --columns zz -k 3 --out r", "parts has no column 'zz'"),
        ("fit parts/*.csv --categories zz -k 3 --out r", "*.csv has no column 'zz'"),
        ("inspect nope", "nope does not exist."),
        ("predict nope a.csv --out l.csv", "nope does not exist."),
    ],
)
def test_runs_inputs_and_columns_that_do_not_exist_are_refused_before_anything_slow_is_imported(
    tmp_path, given, message
):
    frame = pd.DataFrame({"x": [1.0], "y": [2.0]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "parts").mkdir()
    frame.to_csv(tmp_path / "parts" / "1.csv", index=False)
    script = "import sys; from daskmm.cli.main import main; main(sys.argv[1:]); "
    script += "assert not {'dask', 'pandas', 'sklearn'} & set(sys.modules)"
    command = [sys.executable, "-c", script, *given.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert done.stderr.startswith("daskmm: error: ")
    assert message in done.stderr


def test_missing_extras_are_named_before_a_fit(tmp_path, npy, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    out = ["-k", 2, "--out", tmp_path / "run"]
    assert "daskmm[plot]" in refused(capsys, "fit", npy, *out)
    assert "daskmm[plot]" in refused(capsys, "demo", "--out", tmp_path / "demo")
    assert not (tmp_path / "demo").exists()
    monkeypatch.setitem(sys.modules, "distributed", None)
    message = refused(capsys, "fit", npy, *out, "--no-pictures", "--scheduler", "tcp://x:1")
    assert "daskmm[distributed]" in message


def test_a_crash_after_the_fit_keeps_the_fit(tmp_path, npy, capsys, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("unforeseen")

    # `fit` leaves out the choice of a scale, which would be made again, in steps on the sample.
    command = [npy, tmp_path / "run", "--quiet"]
    monkeypatch.setattr(run_folder, "summarize", fail)
    assert fit(*command) == 1
    error = capsys.readouterr().err
    assert "RuntimeError: unforeseen" in error
    assert "run the same command to resume" in error
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint"]
    monkeypatch.setattr(
        run_folder, "summarize", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert fit(*command) == 130
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint"]
    monkeypatch.undo()
    monkeypatch.setattr("daskmm.kmeans.updates.block_sums", fail)
    assert fit(*command) == 0
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "run"}


@pytest.fixture
def handled():
    """A function that sets the handler of SIGINT until the end of a test."""
    former = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, former)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_an_interrupt_that_is_ignored_or_handled_does_not_end_a_fit(
    tmp_path, store, monkeypatch, handled, handler
):
    monkeypatch.setattr(
        ProgressLine, "__call__", lambda line, record: signal.raise_signal(signal.SIGINT)
    )
    handled(handler)
    assert fit(store, tmp_path / "run") == 0


def test_an_interrupt_ends_a_fit_without_another_pass_and_the_command_resumes_it(
    tmp_path, store, capsys, monkeypatch, handled
):
    handled(signal.default_int_handler)  # a test run in the background ignores interrupts
    options = "--tol", "0", "--max-iter", "4", "--model", "entropy", "--lam", "1"
    assert fit(store, tmp_path / "whole", *options) == 0
    sums, passes = updates.CentersProblem.steps, []

    def counted(problem, states):
        passes.append(problem.n_passes)
        return sums(problem, states)

    def interrupted(line, record):
        passes.clear()
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(updates.CentersProblem, "steps", counted)
        patched.setattr(ProgressLine, "__call__", interrupted)
        capsys.readouterr()
        assert fit(store, tmp_path / "run", *options) == 130
    assert passes == []
    error = capsys.readouterr().err
    assert error.endswith(
        f"daskmm: {tmp_path / 'run'} holds a checkpoint; run the same command to resume\n"
        "daskmm: interrupted\n"
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint"]
    assert fit(store, tmp_path / "run", *options) == 0
    whole, resumed = (daskmm.load(tmp_path / name) for name in ("whole", "run"))
    np.testing.assert_array_equal(resumed.cluster_centers_, whole.cluster_centers_)
    assert resumed.n_passes_ == whole.n_passes_ + 1  # the first pass is made once more


def test_the_sample_is_read_with_the_labels(tmp_path, table):
    """The data are loaded once for labels and picture together."""
    loads = []

    class Counting:
        shape, dtype, ndim = table.shape, table.dtype, 2

        def __getitem__(self, index):
            loads.append(index[0].start)
            return table[index]

    import dask.array as da

    X = da.from_array(Counting(), chunks=(100, 5), name=False, meta=np.empty((0, 0)))
    model = daskmm.KMeans(K, random_state=0).fit(X)
    loads.clear()
    run_folder.write_run(tmp_path / "run", model, X, source="", notes=[], pictures=True)
    assert sorted(loads) == list(range(0, 1200, 100))


def test_help_of_each_command_shows_an_example(capsys):
    assert main(["--help"]) == 0
    assert "a first session" in capsys.readouterr().out
    for command in ("demo", "fit", "predict", "inspect", "plan"):
        assert main([command, "--help"]) == 0
        assert f"example:\n  daskmm {command}" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert main([]) == 2
    assert main(["fly"]) == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "code"), [(["fit", "--help"], 0), (["--version"], 0), (["fit", "x.npy"], 2)]
)
def test_help_and_errors_of_options_wait_for_no_library(arguments, code):
    program = (
        "import sys; from daskmm.cli.main import main; code = main(sys.argv[1:])\n"
        "assert not {'dask', 'sklearn', 'scipy', 'zarr'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", program, *arguments]
    assert subprocess.run(command, capture_output=True, check=False).returncode == code


@pytest.mark.long
def test_the_module_runs_as_a_command(tmp_path, npy):
    command = [sys.executable, "-m", "daskmm"]
    command += ["fit", npy, "-k", str(K), "--out", "run", "--json", "--no-pictures"]
    command += ["--model", "kmeans", "--no-standardize", "--n-init", "1"]
    options = {"capture_output": True, "text": True, "cwd": tmp_path, "timeout": 120}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert strict(done.stdout)["run"] == "run"
    assert "iteration" in done.stderr


def test_commands_compute_on_the_cluster_at_an_address(tmp_path, store, npy, capsys):
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
    ) as cluster:
        address = ["--scheduler", cluster.scheduler_address]
        assert fit(store, tmp_path / "far", "--quiet", *address) == 0
        predict = ["predict", str(tmp_path / "far"), npy, "--out", str(tmp_path / "l")]
        assert main([*predict, "--quiet", *address]) == 0
    assert fit(store, tmp_path / "near", "--quiet") == 0
    far, near = (run_folder.open_run(tmp_path / name) for name in ("far", "near"))
    assert far.summary["inertia"] == pytest.approx(near.summary["inertia"], rel=1e-9)
    np.testing.assert_array_equal(labels_of(far.path), labels_of(near.path))
    assert capsys.readouterr().err == ""


def test_a_scheduler_that_does_not_answer_is_an_error(tmp_path, npy, capsys, monkeypatch):
    monkeypatch.setattr("daskmm.cli.actions._SCHEDULER_TIMEOUT", 0.2)
    out = ["-k", 2, "--out", tmp_path / "run", "--scheduler"]
    for address in ("tcp://127.0.0.1:1", "nowhere"):
        message = refused(capsys, "fit", npy, *out, address)
        assert f"no scheduler answers at {address}" in message


@pytest.mark.long
def test_the_demo_compares_two_fits_of_generated_data(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "_CHUNK_ROWS", 2000)
    said = []
    out = tmp_path / "demo"
    out.mkdir()
    report = demo.run_demo(out, n_samples=6000, say=said.append, show_progress=False)
    assert report["data_bytes"] == 6000 * 400
    lloyd, entropy = report["results"]["lloyd"], report["results"]["entropy"]
    assert entropy["nmi"] > 0.8 > lloyd["nmi"]
    assert entropy["features_found"] == [0, 1, 2, 3, 4]
    # Statistics and sample, then one hard step: all rows are in the sample.
    assert entropy["n_passes"] == 2
    assert {p.name for p in out.iterdir()} == {"data.zarr", "truth.zarr", "lloyd", "entropy"}
    for name in ("lloyd", "entropy"):
        assert (out / name / "projection.png").stat().st_size > 10_000
    text = "\n".join(said)
    for part in ("peak memory", "NMI with the truth", "features found", "try next", "2.4 MB"):
        assert part in text
    assert open_data(out / "data.zarr").dtype == np.float64
    assert zarr.open_array(out / "truth.zarr").shape == (6000,)
    strict(run_folder.strict_json(report))
    assert "not empty" in refused(capsys, "demo", "--out", out)


@pytest.mark.long
def test_the_demo_command_prints_json_or_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(demo.run_demo.__kwdefaults__, "n_samples", 3000)
    assert main(["demo", "--out", str(tmp_path / "demo"), "--json", "--quiet"]) == 0
    report = strict(capsys.readouterr().out)
    assert report["data_bytes"] == 3000 * 400
    assert main(["demo", "--out", str(tmp_path / "more"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_the_demo_is_refused_if_the_disk_has_too_little_room(tmp_path, capsys):
    with pytest.raises(OSError, match="has room for"):
        demo.run_demo(tmp_path / "demo", n_samples=10**15)


@pytest.mark.parametrize(
    "model", ["kernel", pytest.param("multi-kernel", marks=pytest.mark.long), "landmarks"]
)
def test_kernel_models_are_fitted_and_label_other_rows(tmp_path, store, npy, capsys, model):
    run = tmp_path / "run"
    extra = ["--model", "kernel", "--n-landmarks", 20] if model == "landmarks" else []
    options = extra or ["--model", model]
    if model == "kernel":
        options += ["--gram", tmp_path / "gram", "--bandwidth", 3.0]
    command = ["fit", store, "-k", str(K), "--out", str(run), "--quiet"]
    assert main([*command, *map(str, options)]) == 0
    assert (run / "projection.png").stat().st_size > 10_000
    labels = zarr.open_array(run / "labels.zarr")[:]
    assert len(np.unique(labels)) == run_folder.open_run(run).model.n_clusters
    predict = ["predict", str(run), npy, "--out", str(tmp_path / "labels"), "--quiet"]
    if model == "landmarks":
        assert main(predict) == 0
    else:  # such a model has left its rows behind
        assert "without its training rows" in refused(capsys, *predict)


def test_a_run_is_not_overwritten(tmp_path, npy, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/file").touch()
    assert fit(npy, "run", "--json") == 2
    error = "daskmm: error: run exists. Choose another path, or remove it first.\n"
    assert capsys.readouterr() == ("", error)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("daskmm ")


HOSTILE = "a\x1b]0;owned\x07\nb"


def test_control_characters_in_names_do_not_reach_the_terminal(tmp_path, table, capsys):
    names = [HOSTILE, "c\x9b2J", *"defghijklmnopqrstuvwxyz"][: table.shape[1]]
    source = tmp_path / f"in {HOSTILE}.parquet"
    pd.DataFrame(table, columns=names).to_parquet(source)
    out = tmp_path / f"it's {HOSTILE}"
    assert main(["fit", str(source), "-k", "2", "--no-pictures", "--out", str(out)]) == 0
    command = capsys.readouterr().out.rpartition("next: daskmm inspect ")[2].strip()
    shown = subprocess.run(["bash", "-c", f"printf %s {command}"], capture_output=True, check=True)
    assert shown.stdout.decode() == str(out)
    assert main(["plan", str(source), "-k", "2"]) == 0
    assert main(["inspect", str(out)]) == 0
    assert main(["inspect", f"{out}-missing"]) == 2
    assert main(["fit", str(source), "-k", "2", "--columns", "\x1b[2J", "--out", f"{out}2"]) == 2
    for text in capsys.readouterr():
        assert text.replace("\n", "").isprintable()
        assert "a\\x1b]0;owned\\x07" in text
        assert not any(line.startswith("b") for line in text.splitlines())


@pytest.mark.long
def test_features_weighted_alike_are_said_to_be(tmp_path, npy, capsys):
    assert fit(npy, tmp_path / "run", "--model", "entropy", "--lam", "inf", "--report") == 0
    assert "features: weighted alike (λ = ∞)" in capsys.readouterr().out
    page = (tmp_path / "run" / "report.html").read_text()
    assert re.search(
        r"features with more than an equal share of the weight.{0,60}weighted alike",
        page,
        re.DOTALL,
    )
    assert "weight: 0" not in page


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("numpy", "pandas")),
        "dask",
        "sparse",
    ],
)
def test_python_writes_a_run_folder_that_commands_read(tmp_path, kind, capsys):
    import dask.array as da
    import pandas as pd
    import scipy.sparse as sp

    X = np.random.default_rng(0).normal(size=(200, 3)) + np.repeat([[0.0], [9.0]], 100, axis=0)
    kinds = {
        "numpy": X,
        "pandas": pd.DataFrame(X, columns=[*"abc"], index=range(5, 205)),
        "dask": da.from_array(X, chunks=(60, 3)),
        "sparse": sp.csr_array(X),
    }
    table = kinds[kind]
    model = daskmm.KMeans(2, random_state=0).fit(table)
    summary = daskmm.write_run(tmp_path / "run", model, table, notes=["look"])
    assert summary["cluster_sizes"] == [100, 100]
    assert "look" in (tmp_path / "run/report.html").read_text(encoding="utf-8")
    assert main(["inspect", str(tmp_path / "run")]) == 0
    assert "2 clusters" in capsys.readouterr().out
    with pytest.raises(FileExistsError, match="run exists"):
        daskmm.write_run(tmp_path / "run", model, table)


def test_columns_that_number_the_rows_are_named(tmp_path, capsys):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(300, 2)), columns=["a", "b"])
    table.insert(0, "customer", 1000 + 7 * np.arange(300))
    table["count"] = np.sort(rng.poisson(9, 300))  # repeats
    table["time"] = np.sort(rng.random(300))  # no integers
    table.to_csv(tmp_path / "rows.csv", index=False)
    fit = ["fit", str(tmp_path / "rows.csv"), "-k", "2", "--model", "kmeans", "--no-pictures"]
    assert main([*fit, "--quiet", "--out", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().err
    assert told.count("Column 'customer' has a different integer in every row") == 1
    assert "--columns" in told
    (note,) = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    assert note in told
    some = ["--columns", "a,b,count,time", "--quiet"]
    assert main([*fit, *some, "--out", str(tmp_path / "other")]) == 0
    assert not capsys.readouterr().err


def test_columns_that_number_many_rows_in_any_order_are_named(tmp_path, capsys):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"customer": rng.permutation(3000), "income": rng.integers(90_000, size=3000)}
    )
    table.to_parquet(tmp_path / "rows.parquet")
    fit = ["fit", str(tmp_path / "rows.parquet"), "-k", "2", "--model", "kmeans", "--no-pictures"]
    assert main([*fit, "--quiet", "--out", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().err
    assert "Column 'customer' has a different integer in every row" in told
    assert "income" not in told
