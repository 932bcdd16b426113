"""The notebooks run to their ends and find what they say that they find."""

import json
import re

import pytest
from _execution import NOTEBOOKS, executed
from _local import local_cluster

ALL = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
# What none of them may hold: paths of the machine that one was written on.
PLACES = re.compile(r"/(home|root|tmp|Users)/|C:\\\\|(?<![\w.:/~])/[A-Za-z][\w.-]*/")


@pytest.mark.parametrize("name", ALL)
def test_notebooks_are_stripped(name):
    text = (NOTEBOOKS / f"{name}.ipynb").read_text()
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert not PLACES.search(text.replace("\\n", "\n"))


def numbers(name, *variables, **options):
    """Values of some variables when the notebook has ended, and its outputs by type."""
    asked = ", ".join(f"{variable!r}: {variable}" for variable in variables)
    question = f"import json; print(json.dumps({{{asked}}}, default=lambda x: x.item()))"
    answer, notebook = executed(name, question, **options)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return json.loads(answer), outputs


def pictures(outputs):
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_quickstart_finds_what_it_says():
    asked = ("blobs_found", "kmeans_found", "entropy_found", "unknown_found", "same")
    found, outputs = numbers(
        "quickstart",
        *asked,
        *("unknown.n_clusters_", "nothing.n_clusters_", "sorted(features)"),
        "counts_found.to_dict()",
    )
    made = found["counts_found.to_dict()"]["counts that are made"]
    assert made["kl"] > made["sqeuclidean"]
    assert found["blobs_found"] > 0.95
    assert found["kmeans_found"] < 0.3
    assert found["entropy_found"] > 0.99
    assert found["unknown_found"] > 0.99
    assert found["unknown.n_clusters_"] == 20
    assert found["nothing.n_clusters_"] == 1
    assert found["sorted(features)"] == [0, 1, 2, 3, 4]
    assert found["same"] is True
    assert pictures(outputs) == 5


@pytest.mark.long
def test_the_kernel_notebook_finds_what_it_says():
    asked = ("straight_found", "rings_found", "agreement", "landmarks_found", "together_found")
    found, outputs = numbers(
        "kernel", *asked, "views_found", "sound", "centre != outside", "multiple.kernel_weights_[1]"
    )
    assert found["straight_found"] < 0.2
    assert found["rings_found"] > 0.99
    assert found["agreement"] > 0.99
    assert found["sound"] is True
    assert found["landmarks_found"] > 0.99
    assert found["centre != outside"] is True
    assert found["together_found"] < 0.5
    assert found["views_found"] > 0.95
    assert found["multiple.kernel_weights_[1]"] > 0.9
    assert pictures(outputs) == 2


@pytest.mark.long
def test_the_rasters_notebook_finds_what_it_says():
    asked = ("of_complete", "of_imputed", "of_truth", "sea_is_empty", "same", "hidden", "chosen")
    found, outputs = numbers("rasters", *asked)
    assert found["hidden"] == pytest.approx(0.4, abs=0.02)
    assert found["of_complete"] > 0.99
    assert found["of_complete"] > found["of_imputed"]
    assert found["of_truth"] > 0.99
    assert found["sea_is_empty"] is True
    assert found["same"] is True
    assert found["chosen"] == 5
    assert pictures(outputs) == 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_cluster_notebook_finds_what_it_says(monkeypatch, tmp_path):
    with local_cluster(2) as (_, told):
        monkeypatch.setenv("DASKMM_SCHEDULER", told[0])
        monkeypatch.setenv("DASKMM_DATA", str(tmp_path))
        asked = ("sampled_found", "len(newcomers)", "worst", "moved", "stopped.n_iter_")
        found, outputs = numbers(
            "on-a-cluster", *asked, "sampled.n_passes_", "iterations[0].iteration", "same_bits"
        )
    assert found["sampled_found"] > 0.99
    assert found["sampled.n_passes_"] <= 6
    assert found["len(newcomers)"] == 1
    assert found["worst"] <= 1e-9
    assert found["moved"] == 0
    assert found["stopped.n_iter_"] == 5
    assert found["iterations[0].iteration"] == 6
    assert found["same_bits"] is True
    told = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert "is dead\n" in told
    # It tidies up.
    assert list(tmp_path.iterdir()) == []
