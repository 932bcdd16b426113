"""Machine code on disk: what invalidates it, and where it is kept."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import daskmm

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import daskmm
from daskmm.compiled import moments
assert daskmm.__file__.startswith(sys.argv[1])
moments.block_moments(np.ones((3, 2)), None)
stats = moments._add_moments.stats
print(stats.cache_path)
print("compiled" if sum(stats.cache_misses.values()) else "loaded")
"""


@pytest.fixture
def fit(tmp_path):
    """A function that has a copy of the package compile or load a loop, and says which."""
    shutil.copytree(
        Path(daskmm.__file__).parent,
        tmp_path / "daskmm",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    # mtimes of whole seconds must not hide an edit from Python's own cache
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "cache")

    def run():
        command = [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=240, check=True
        )
        place, how = done.stdout.split()
        assert Path(place).is_relative_to(tmp_path / "cache")
        return how

    return run


def edit(path, *changes):
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)


def test_code_is_compiled_anew_when_it_changes_and_not_when_its_prose_does(fit, tmp_path):
    package = tmp_path / "daskmm"
    assert fit() == "compiled"
    assert fit() == "loaded"
    for name in ("compiled/moments.py", "compiled/layout.py", "numerics/rows.py"):
        edit(
            package / name,
            ('"""', '"""Other words.\n\n'),
            ("import annotations\n", "import annotations\n# A comment.\n"),
        )
    assert fit() == "loaded"
    edit(
        package / "compiled/block_sums.py", ("b = min(tile, n - start)", "b = min(n - start, tile)")
    )
    assert fit() == "loaded"  # moments do not depend on it
    edit(package / "numerics/rows.py", ("TILE_BYTES = 4 << 20", "TILE_BYTES = 5 << 20"))
    assert fit() == "compiled"  # a constant in a module that is imported by one that is imported
    assert fit() == "loaded"
