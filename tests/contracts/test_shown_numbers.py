"""Each number that a fitted model shows is the one that its definition gives for the raw rows."""

import warnings

import dask
import pytest
from _shown import CHECKS, case_of, check_saved, check_updates
from _shown_again import check_plan, check_report, check_resumed
from _shown_beside import check_drift, check_lists, check_tree
from _shown_mixed import check_mixed, check_mixture, check_scores

from daskmm.report import page as html_report

TOGETHER = 60


@pytest.fixture(autouse=True)
def _quietly_in_this_thread():
    # Few rows and few iterations may well end in a warning that says so.
    with dask.config.set(scheduler="sync"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check_numbers(seed, folder):
    case = case_of(seed).fit()
    try:
        for check in CHECKS:
            check(case)
        check_saved(case, folder)
        takes_updates = "sparse" not in case.form and "raster" not in case.form
        if takes_updates and case.kind != "cosine" and getattr(case.model, "polish", True):
            check_updates(case, seed)
    except BaseException as error:
        error.add_note(str(case))
        raise


def run_all(seeds, check, *arguments):
    """Check some inputs; an error names its seed."""
    for seed in seeds:
        try:
            check(seed, *arguments)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_few_models_show_the_numbers_of_their_definitions(tmp_path):
    run_all(range(6), check_numbers, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("part", range(5))
def test_many_models_show_the_numbers_of_their_definitions(part, tmp_path):
    run_all(range(part * TOGETHER, (part + 1) * TOGETHER), check_numbers, tmp_path)


OTHERS = pytest.mark.parametrize("check", [check_mixed, check_mixture, check_scores])


@OTHERS
def test_a_few_mixed_tables_mixtures_and_scores_have_right_numbers(check):
    run_all(range(3), check)


@pytest.mark.long
@OTHERS
def test_many_mixed_tables_mixtures_and_scores_have_right_numbers(check):
    run_all(range(2 * TOGETHER), check)


BESIDE = pytest.mark.parametrize("check", [check_lists, check_tree, check_drift])


@BESIDE
def test_a_few_trees_lists_and_looks_have_right_numbers(check, tmp_path):
    run_all(range(6), check, tmp_path)


@pytest.mark.long
@BESIDE
def test_many_trees_lists_and_looks_have_right_numbers(check, tmp_path):
    run_all(range(2 * TOGETHER), check, tmp_path)


@pytest.fixture
def _without_figures(monkeypatch):
    monkeypatch.setattr(html_report, "pictures", lambda model, sampled: [])


AGAIN = pytest.mark.parametrize("check", [check_report, check_plan, check_resumed])


@AGAIN
@pytest.mark.usefixtures("_without_figures")
def test_a_few_reports_plans_and_resumed_fits_are_right(check, tmp_path):
    run_all(range(4), check, tmp_path)


@pytest.mark.long
@AGAIN
@pytest.mark.usefixtures("_without_figures")
def test_many_reports_plans_and_resumed_fits_are_right(check, tmp_path):
    run_all(range(TOGETHER), check, tmp_path)
