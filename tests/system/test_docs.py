"""Every command and every line of Python that the pages show is run, in their order."""

import os
import pkgutil
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

TOP = Path(__file__).parents[2]
# Other pages in docs/ are executed when they are built: see test_site. Their commands are run here.
MADE = {path for folder in (".", "guide", "how") for path in TOP.glob(f"docs/{folder}/*.md")}
MADE.discard(TOP / "docs/index.md")
FOUND = {path for folder in (".", "[!.]*", ".github") for path in TOP.glob(f"{folder}/*.md")}
PAGES = sorted(path.relative_to(TOP) for path in FOUND - MADE)
# Cells, which are executed, are blocks too: an end of theirs is no beginning.
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INSTALL = re.compile(r"python3 -m venv \.venv && \.venv/bin/python -m pip install \S+ .*? && ")
_NAME = re.compile(r"\bdaskmm(?:\.\w+)+(?![\w-])")
_LINK = re.compile(r"\]\((?!https?://)([^)#]+)\)")


def blocks(page, language):
    """Texts of the fenced blocks of a language."""
    found = _FENCE.findall((TOP / page).read_text())
    return [text for known, text in found if known == language]


def commands(page):
    """What a page has the shell do, in an environment that has everything installed already."""
    installed = [_INSTALL.sub("", text) for text in blocks(page, "sh")]
    # The tests themselves; .ci/run begins with that very command.
    return [t.replace(".venv/bin/", "") for t in installed if "-m pytest" not in t]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    for target in _LINK.findall((TOP / page).read_text()):
        assert (TOP / page.parent / target).exists(), target


def test_promises_name_tests_that_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (TOP / "docs/guide/promises.md").read_text())
    assert len(named) > 20
    for path, test in named:
        assert f"def {test}(" in (TOP / path).read_text(), f"{path}::{test}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_blocks_say_what_they_are(page):
    # console: what is not run here, and the page says why.
    found = {language for language, _ in _FENCE.findall((TOP / page).read_text())}
    known = {language for language in found if not language.startswith("{")}
    assert known <= {"sh", "python", "console", "yaml", "text", "diff"}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_names_that_a_page_mentions_exist(page):
    # Not in blocks of text: diffs there add new names.
    for name in _NAME.findall(_FENCE.sub("", (TOP / page).read_text())):
        pkgutil.resolve_name(name)


def test_names_that_the_sources_mention_exist():
    for path in [*(TOP / "daskmm").rglob("*.py"), *MADE]:
        for name in _NAME.findall(path.read_text()):
            pkgutil.resolve_name(name)


def test_the_diffs_of_the_recipes_apply(tmp_path):
    found = blocks("CONTRIBUTING.md", "diff")
    assert len(found) == 4
    for number, text in enumerate(found):
        patch = tmp_path / f"{number}.diff"
        patch.write_text(text)
        subprocess.run(["git", "apply", "--check", patch], cwd=TOP, check=True)


# A script that checks what the recipes of CONTRIBUTING.md promise, with their diffs applied.
FOLLOWED = """
import warnings
import numpy as np
import daskmm

warnings.simplefilter("ignore")
assert daskmm.__file__.startswith({folder!r})
X = np.random.default_rng(0).gamma(2.0, size=(300, 3))
own = daskmm.KHarmonicMeans(3, n_init=2, random_state=0).fit(X)
same = daskmm.PowerKMeans(3, s0=-1, eta=1, n_init=2, random_state=0).fit(X)
np.testing.assert_array_equal(own.cluster_centers_, same.cluster_centers_)
daskmm.PowerKMeans(3, distortion="inverse-gaussian", standardize=False).fit(X)

class Seen(list):
    def __call__(self, record): pass
    def expect(self, stages, tol): self.extend(stages or ())
    def follow(self, stage, found): self.append(stage)

seen = Seen()
daskmm.KMeans(3, callbacks=[seen], random_state=0).fit(X)
assert seen.count("swap") >= 1, seen
"""


@pytest.mark.long
def test_the_recipes_can_be_followed(tmp_path):
    found = blocks("CONTRIBUTING.md", "diff")
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(TOP / "daskmm", tmp_path / "daskmm", ignore=skipped)
    for number, text in enumerate(found):
        patch = tmp_path / f"{number}.diff"
        patch.write_text(text)
        subprocess.run(["git", "apply", patch], cwd=tmp_path, check=True)
    script = FOLLOWED.format(folder=str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [p for p in PAGES if commands(p) or blocks(p, "python")], ids=str)
def test_a_page_can_be_followed(page, tmp_path):
    for name in ("deploy", "notebooks", "tests"):
        (tmp_path / name).symlink_to(TOP / name)
    # Tables that the pages suppose.
    people = pd.DataFrame(
        np.random.default_rng(0).normal(size=(500, 3)), columns=["age", "height", "income"]
    )
    for name in ("people", "more-people"):
        dd.from_pandas(people.assign(name="x"), npartitions=3).to_parquet(tmp_path / name)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{TOP}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "MPLBACKEND": "agg",
    }
    lines = "\n".join(blocks(page, "python"))
    jobs = [["bash", "-euo", "pipefail", "-c", text] for text in commands(page)]
    jobs += [[sys.executable, "-c", lines]] if lines else []
    for job in jobs:
        done = subprocess.run(
            job, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{job[-1]}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def test_commands_stand_only_where_a_test_runs_them():
    found = {page.name: dict(_FENCE.findall(page.read_text())) for page in MADE}
    assert {name for name, shown in found.items() if "sh" in shown} == {"get-started.md"}
    assert {name for name, shown in found.items() if "console" in shown} == {"cluster.md"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_first_page_can_be_followed_from_its_installation_on(tmp_path):
    checkout = tmp_path / "daskmm"
    subprocess.run(["git", "clone", "-q", TOP, checkout], check=True)
    rows = np.random.default_rng(0).normal(size=(500, 3))
    people = pd.DataFrame(rows, columns=["age", "height", "income"])
    people.to_parquet(checkout / "people.parquet")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(blocks("docs/get-started.md", "sh"))],
        cwd=checkout,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
    assert len(pd.read_csv(checkout / "labels.csv")) == len(people)
    assert (checkout / "run/report.html").exists()


def _run(command, place):
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_nightly_script_goes_on_night_after_night(tmp_path, monkeypatch):
    page = (TOP / "docs/guide/updates.md").read_text()
    (script,) = re.findall(r"^cat >nightly.sh <<'END'\n(.*?)^END$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "nightly.sh").write_text(script)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{TOP}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    rng = np.random.default_rng(0)
    for night in range(4):
        rows = rng.normal(size=(1500, 3)) + 8.0 * rng.integers(3, size=(1500, 1))
        rows += (0.05 * night) if night < 3 else 1.0
        rows[7] = 100.0
        pd.DataFrame(rows, columns=list("abc")).to_csv(tmp_path / f"{night}.csv", index=False)
    fit = ["fit", "0.csv", "-k", "3", "--out", "run", "--no-pictures", "--quiet"]
    assert _run(["daskmm", *fit], tmp_path).returncode == 0
    for night in (1, 1, 2):
        done = _run(["bash", "nightly.sh", f"{night}.csv", f"2026-03-0{night}"], tmp_path)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert len(pd.read_csv(tmp_path / f"labels-2026-03-0{night}.csv")) == 1500
        assert pd.read_csv(tmp_path / f"outliers-2026-03-0{night}.csv")["cluster"][7] == -1
    model = (tmp_path / "run/centers.csv").read_text()
    done = _run(["bash", "nightly.sh", "3.csv", "2026-03-03"], tmp_path)
    assert done.returncode == 3
    assert "drift: the mean of column '" in done.stderr
    assert (tmp_path / "outliers-2026-03-03.csv").exists()
    assert (tmp_path / "run/centers.csv").read_text() == model
    assert _run(["bash", "nightly.sh", "4.csv", "2026-03-04"], tmp_path).returncode == 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_commands_that_start_a_cluster_work(tmp_path):
    import distributed

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    lines = blocks("docs/guide/cluster.md", "console")[0].replace("8786", port).splitlines()
    assert [line.split()[:2] for line in lines] == [["dask", "scheduler"], ["dask", "worker"]]
    more = [["--dashboard-address", "127.0.0.1:0"], ["--local-directory", str(tmp_path)]]
    processes = []
    try:
        for line, options in zip(lines, more, strict=True):
            command = [sys.executable, "-m", *line.split(), *options]
            processes.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
        with distributed.Client(f"tcp://127.0.0.1:{port}", timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)
