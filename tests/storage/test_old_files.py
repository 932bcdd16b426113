"""Models and checkpoints that version 0.1 wrote, before its modules became packages, still load.

`data/` holds one zip file for each; they were made of `X` below.
"""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from daskmm import (
    EntropyPowerKMeans,
    KernelPowerKMeans,
    KMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
    load,
)
from daskmm.auto.bandwidth import BandwidthPath
from daskmm.auto.lam import LamPath
from daskmm.auto.n_clusters import ClusterNumberPath
from daskmm.auto.standardize import ScaleChoice
from daskmm.mean_shift.blurring import BlurringRecord
from daskmm.mm.driver import IterationRecord
from daskmm.numerics.kernels import Kernel

X = np.random.default_rng(0).normal(size=(60, 2))
X[20:40] += 8
X[40:] -= 8


def unpacked(name, folder):
    with zipfile.ZipFile(Path(__file__).parent / "data" / f"{name}.zip") as archive:
        archive.extractall(folder)
    return next(folder.iterdir())


@pytest.mark.parametrize(
    ("name", "cls", "record", "kinds"),
    [
        (
            "entropy",
            EntropyPowerKMeans,
            IterationRecord,
            {"lam_path_": LamPath, "n_clusters_path_": ClusterNumberPath},
        ),
        ("kernel", KernelPowerKMeans, IterationRecord, {"kernels_": Kernel}),
        ("scale", KMeans, IterationRecord, {"standardize_path_": ScaleChoice}),
        (
            "mean-shift",
            WeightedBlurringMeanShift,
            BlurringRecord,
            {"bandwidth_path_": BandwidthPath},
        ),
    ],
)
def test_models(name, cls, record, kinds, tmp_path):
    path = unpacked(f"model-{name}", tmp_path)
    model = load(path)
    assert type(model) is cls
    assert {type(item) for item in model.history_} == {record}
    for attribute, kind in kinds.items():
        value = getattr(model, attribute)
        assert type(value[0] if isinstance(value, list) else value) is kind
    assert len(np.unique(model.labels_)) == 3
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    # What is saved again is, byte for byte, what was there, but for parameters that are newer.
    model.save(tmp_path / "again")
    before, after = (
        {
            str(file.relative_to(folder)): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file()
        }
        for folder in (path, tmp_path / "again")
    )
    old, new = (json.loads(files.pop("zarr.json"))["attributes"] for files in (before, after))
    assert after == before
    newer = set(new["parameters"]) - set(old["parameters"])
    fresh = cls()
    for name in newer:
        assert getattr(model, name) == getattr(fresh, name), name
        del new["parameters"][name]
    del old["digest"], new["digest"]
    assert new == old


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("power", PowerKMeans(3, eta=1.2, random_state=0)),
        ("mean-shift", WeightedBlurringMeanShift(0.1, random_state=0)),
    ],
)
def test_fits_go_on_from_checkpoints(name, model, tmp_path):
    iterations = []
    expected = model.set_params(callbacks=None).fit(X)
    labels, history = expected.labels_, expected.history_
    path = unpacked(f"checkpoint-{name}", tmp_path)
    model.set_params(checkpoint=path, callbacks=[iterations.append]).fit(X)
    np.testing.assert_array_equal(model.labels_, labels)
    assert len(iterations) < len(history) == len(model.history_)
    for found, record in zip(model.history_, history, strict=True):
        assert (found.iteration, found.stage) == (record.iteration, record.stage)
