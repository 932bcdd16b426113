"""Options that are made of the estimators' parameters: their names, types, defaults and texts."""

import inspect
import shutil
from numbers import Integral, Real

import pytest

from daskmm import cluster
from daskmm.cli import model_options
from daskmm.cli.commands import MODELS, UserError, build_parser
from daskmm.cli.model_options import parameters_of
from daskmm.cluster._sklearn import Interval, StrOptions

# Parameters that have no option.
WITHOUT = {
    "callbacks",
    "checkpoint",
    "forget",
    "kernels",
    "means_init",
    "metric_params",
    "precisions_init",
    "verbose",
    "warm_start",
    "weights_init",
}


def parsed(*options):
    arguments = build_parser().parse_args(["fit", "x.npy", "--out", "run", *options])
    return {
        name: value for name, value in vars(arguments).items() if name in parameters_of("KMeans")
    }


@pytest.mark.parametrize("estimator", MODELS.values())
def test_what_is_read_from_the_source_is_what_the_class_says(estimator):
    cls = getattr(cluster, estimator)
    signature = inspect.signature(cls).parameters
    found = parameters_of(estimator)
    assert {name: each.default for name, each in found.items()} == {
        name: parameter.default for name, parameter in signature.items()
    }
    assert {name for name, each in found.items() if not each.has_option} == WITHOUT & set(found)
    for name, each in found.items():
        assert each.sentence, name
        if each.has_option:
            check_values(each, cls._parameter_constraints[name])


def check_values(parameter, constraints):
    """Check that the documented type admits what the constraints admit."""
    words = {word for one in constraints if isinstance(one, StrOptions) for word in one.options}
    if parameter.choices:
        assert {*parameter.choices} == words - {"precomputed"}
        return
    numbers = {one.type for one in constraints if isinstance(one, Interval)}
    numbers |= {Integral} if "random_state" in constraints else set()
    kinds = {"int": {Integral}, "float": {Real}}
    for name, kind in kinds.items():
        assert (name in parameter.words) == bool(kind & numbers), parameter
    assert ("bool" in parameter.words) == ("boolean" in constraints)
    assert bool({"str", "path"} & {*parameter.words}) == (str in constraints)
    if str not in constraints:
        assert {word for word in parameter.words if '"' in word} == {f'"{word}"' for word in words}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--checkpoint-every", "30s", "--persist"], {"checkpoint_every": "30s", "persist": True}),
        (["--checkpoint-every", "2", "--seed", "3"], {"checkpoint_every": 2, "random_state": 3}),
        (["-k", "auto", "--no-standardize"], {"n_clusters": "auto", "standardize": False}),
        (["--trim", ".1", "--init", "random"], {"trim": 0.1, "init": "random"}),
        ([], {}),
    ],
)
def test_values_have_the_types_of_the_parameters(options, expected):
    found = parsed(*options)
    assert found == expected
    assert [type(found[name]) for name in expected] == [type(each) for each in expected.values()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-init", "some"], "invalid \"auto\" or int value: 'some'"),
        (["--max-iter", "1.5"], "invalid int value"),
        (["--tol", "small"], "invalid float value"),
        (["--init", "spectral"], "invalid choice: 'spectral'"),
        (["--kernel", "precomputed"], "invalid choice: 'precomputed'"),
    ],
)
def test_values_of_other_types_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        parsed(*options)


def test_the_help_says_which_models_differ(capsys):
    with pytest.raises(SystemExit, match="0"):
        parsed("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "factor by which the power grows in size; 1 keeps it constant (default 1.05)" in text
    assert "(power, kmeans, kernel: default auto; entropy, mean" in text
    assert "kernel: bandwidth σ of the kernel (default auto); mean-shift: bandwidth h" in text
    assert "entropy: default sqeuclidean, or manhattan, mixed)" in text


def test_a_new_parameter_has_an_option_by_itself(tmp_path, monkeypatch, capsys):
    shutil.copytree(model_options._SOURCES, tmp_path / "cluster")
    path = tmp_path / "cluster" / "kmeans.py"
    text = path.read_text(encoding="utf-8")
    text = text.replace(
        "class KMeans(",
        "@dataclass\nclass Added:\n    patience: int = 7\n\n\nclass KMeans(Added, ",
    )
    text = text.replace(
        "    max_iter : int",
        "    patience : int\n        Idle steps. More.\n\
    max_iter : int",
    )
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(model_options, "_SOURCES", tmp_path / "cluster")
    caches = model_options.parameters_of, model_options._sources, model_options._documented
    try:
        for cached in caches:
            cached.cache_clear()
        with pytest.raises(SystemExit, match="0"):
            parsed("--help")
    finally:
        for cached in caches:
            cached.cache_clear()
    shown = " ".join(capsys.readouterr().out.split())
    assert "parameters of --model kmeans: --patience N idle steps (default 7)" in shown
