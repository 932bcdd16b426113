"""What a fit imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FITS = """
import sys
import numpy as np
import daskmm

X = np.random.default_rng(0).normal(size=(60, 3))
for name in {names}:
    model = getattr(daskmm, name)(2).fit(X)
    model.predict(X)
    assert "dask" not in sys.modules, name
"""


def set_home(monkeypatch, folder):
    for name in ("HOME", "USERPROFILE"):  # the latter is that of Windows
        monkeypatch.setenv(name, str(folder))


def test_fits_of_arrays_in_memory_do_not_import_dask():
    names = ["KMeans", "KernelPowerKMeans", "GaussianMixture"]
    code = _FITS.format(names=names)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_dask_settings_of_the_environment_hold_before_dask_is_imported(monkeypatch):
    code = "from daskmm.engine.resources import threads_here; print(threads_here())"
    monkeypatch.setenv("DASK_NUM_WORKERS", "7")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "7\n", found.stderr


def test_settings_in_a_file_are_read_and_files_of_comments_are_not(tmp_path, monkeypatch):
    code = "from daskmm._dask import is_configured; print(is_configured())"
    set_home(monkeypatch, tmp_path)
    folder = tmp_path / ".config" / "dask"
    folder.mkdir(parents=True)
    for text, configured in (("# num_workers: 7\n\n", "False"), ("num_workers: 7\n", "True")):
        (folder / "jobs.yaml").write_text(text)
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert found.stdout.strip() == configured, found.stderr


_WITHOUT_HOME = """
import pwd

def unknown(uid):
    raise KeyError(uid)

pwd.getpwuid = unknown
"""


@pytest.mark.parametrize("home", ["unknown", "without a file"])
def test_settings_that_cannot_be_read_count_as_none(home, tmp_path, monkeypatch):
    code = "from daskmm._dask import is_configured; print(is_configured())"
    if home == "unknown":
        monkeypatch.delenv("HOME")
        pytest.importorskip("pwd")
        code = _WITHOUT_HOME + code
    else:
        set_home(monkeypatch, tmp_path)
        (tmp_path / ".config" / "dask" / "jobs.yaml").mkdir(parents=True)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "False", found.stderr
