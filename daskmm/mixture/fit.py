"""Fit Gaussian mixtures: the stages of a fit, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import cpu_count
from daskmm.engine.first_pass import Survey, described_data, first_pass
from daskmm.engine.passes import Passes
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.trials import nearest, spawned
from daskmm.mixture.costs import MixtureCosts
from daskmm.mixture.em import MixtureProblem, MixtureState, sample_problem
from daskmm.mixture.settings import FIRST_DEGREES, TRIAL_STEPS, Settings, wanted_rows
from daskmm.mixture.split_merge import moves
from daskmm.mixture.starts import labelled_components, starting_labels
from daskmm.mm.context import FitContext
from daskmm.mm.driver import Outcome, Run, iterate, minimize
from daskmm.mm.journal import draw_seeds
from daskmm.mm.stages import MADE_LATER, Stage
from daskmm.numerics.gaussians import COVARIANCE_TYPES, SingularComponentError
from daskmm.numerics.gaussians_with_gaps import expected_rows
from daskmm.numerics.whitening import without_tails

FloatArray = NDArray[np.float64]

# Number of starts that continue after the trials, and the largest number of their EM steps.
KEPT, SAMPLE_STEPS = 3, 200
# Tolerance on the sample, as a share of `tol`, or of the usual tolerance if `tol` is 0.
_SAMPLE_TOL, _USUAL_TOL = 0.1, 1e-3
# A component has at least the first number of rows. With a covariance or degrees of freedom of its
# own, it has at least the second number; a covariance matrix adds the third number for each
# feature. Runs with smaller components come last in the comparison of runs.
_LEAST, _LEAST_OF_OWN, _LEAST_PER_FEATURE = 1, 3, 2
# Number of robust standard deviations at which features are clipped to find starts of t
# distributions.
_REACH = 5.0
# Number of starts with which covariance types are compared.
_TYPE_STARTS = 2
# Largest number of rounds of splits and merges, of moves tried in each round, and of EM steps of
# each move.
ROUNDS, MOVES, MOVE_STEPS = 10, 4, 12


@dataclass(frozen=True)
class MixtureFit:
    """State of a fit of a mixture."""

    passes: Passes
    context: FitContext
    rng: np.random.RandomState
    settings: Settings
    seed: int = 0  # seed of the sample and of the starts
    survey: Survey = MADE_LATER  # survey in standardised coordinates
    # Bayesian information criterion of each covariance type; empty if it is not chosen.
    criteria: dict[str, float] = field(default_factory=dict)
    starts: Sequence[MixtureState] = ()
    # EM runs on the sample, the best first. After the last stage, only the run from which the
    # passes over the table started.
    runs: Sequence[Run[MixtureState]] = ()
    result: Outcome[MixtureState] = MADE_LATER  # outcome of EM over the table

    @property
    def sample(self) -> tuple[FloatArray, FloatArray]:
        """Rows of the sample in the input's units, and their weights."""
        sample = self.survey.sample
        return self.survey.coordinates.to_input(sample.rows), sample.weights

    @property
    def n_sampled(self) -> int:
        """Number of rows of the sample."""
        return len(self.survey.sample.rows)

    def whole_sample(self, state: MixtureState | None = None) -> tuple[FloatArray, FloatArray]:
        """Return the sample with the state's expectations, or means, for missing values."""
        rows, weights = self.sample
        if not (self.settings.partial and np.isnan(rows).any()):
            return rows, weights
        if state is None:
            return np.where(np.isnan(rows), self.survey.coordinates.mean, rows), weights
        return expected_rows(rows, state), weights

    def on_sample(self) -> MixtureProblem:
        """Return the EM steps on the sample."""
        own = self.settings
        tol = _SAMPLE_TOL * (own.tol or _USUAL_TOL)
        return sample_problem(*self.sample, own.reg_covar, tol, cpu_count())


def _seeded(fit: MixtureFit) -> MixtureFit:
    [seed] = draw_seeds(fit.context.journal, fit.rng, 1)
    return replace(fit, seed=seed)


def _surveyed(fit: MixtureFit) -> MixtureFit:
    """Make the first pass."""
    wanted = wanted_rows(fit.settings, fit.passes.blocks.layout)
    least = fit.settings.least_rows
    partial = fit.settings.partial
    survey = first_pass(fit.passes, least, True, fit.seed, wanted=wanted, partial=partial)
    fit.context.journal.resume(described_data(fit.passes.blocks.layout, survey), fit.passes)
    return replace(fit, survey=survey)


def _typed(fit: MixtureFit) -> MixtureFit:
    """Choose the covariance type with the smallest criterion on the sample.

    If no type has a finite criterion, the simplest type is taken, whose components need the fewest
    rows.
    """
    found = fit.context.journal.once(lambda: {kind: _bic(fit, kind) for kind in COVARIANCE_TYPES})
    chosen = min(reversed(COVARIANCE_TYPES), key=lambda kind: found[kind])
    return replace(fit, criteria=found, settings=replace(fit.settings, covariance_type=chosen))


def _bic(fit: MixtureFit, kind: str) -> float:
    """Return the Bayesian information criterion of a type, fitted to the sample.

    It is infinite if a component has too few rows.
    """
    starts = min(fit.settings.n_starts, _TYPE_STARTS)
    settings = replace(fit.settings, covariance_type=kind, n_starts=starts, n_first=starts)
    own = replace(fit, settings=settings, context=fit.context.apart())
    [best, *_] = _converged(_tried(_started(own))).runs
    if _is_spurious(best, fit.n_sampled):
        return np.inf
    weight = float(fit.sample[1].sum())
    return float(2.0 * weight * best.last + best.state.n_parameters * np.log(weight))


def _started(fit: MixtureFit) -> MixtureFit:
    """Find the first starting components on the sample, or take the given ones."""
    seeds = spawned(fit.seed, max(fit.settings.n_starts, 1))[: max(fit.settings.n_first, 1)]
    found = fit.context.journal.once(lambda: _starts(fit, seeds))
    return replace(fit, starts=[_as_asked(fit, state) for state in found])


def _as_asked(fit: MixtureFit, state: MixtureState, degrees: float = FIRST_DEGREES) -> MixtureState:
    """Return a start with components of the type that is asked for."""
    tails = None
    if fit.settings.student:
        tails = np.full(len(state.means), degrees) if state.degrees is None else state.degrees
    return replace(state, partial=fit.settings.partial, degrees=tails)


def _starts(fit: MixtureFit, seeds: Sequence[int]) -> list[MixtureState]:
    own, (rows, weights) = fit.settings, fit.whole_sample()
    seen = fit.survey.coordinates.to_model(rows) if own.partial else fit.survey.sample.rows
    if own.student:  # far rows belong to the tails, and would get components of their own
        seen = without_tails(seen, _REACH)
    shape = own.n_components, own.covariance_type, own.reg_covar
    if own.earlier is not None:
        return [own.earlier]
    if own.given.complete:
        first = np.zeros(len(rows), dtype=np.int64)
        return [own.given.over(labelled_components(rows, weights, first, *shape))]
    if own.given.means is not None:
        centers = fit.survey.coordinates.to_model(own.given.means)
        labels = [nearest(seen, CenterState(centers, -np.inf))]
    else:
        labels = starting_labels(own.init_params, seen, weights, own.n_components, seeds)
    states = [labelled_components(rows, weights, one, *shape) for one in labels]
    return [own.given.over(state) for state in states]


def _tried(fit: MixtureFit) -> MixtureFit:
    """Take a few EM steps from every start, on the sample."""
    schedule = replace(fit.settings.schedule, max_iter=TRIAL_STEPS)
    return replace(fit, runs=iterate(fit.on_sample(), fit.starts, schedule, fit.context))


def _differ(fit: MixtureFit) -> bool:
    """Return whether the first starts ended at different likelihoods."""
    costs = [run.last for run in fit.runs if run.stage == "done"]
    own = fit.settings
    if own.n_first == own.n_starts:
        return False
    tol = 2.0 * _SAMPLE_TOL * (own.tol or _USUAL_TOL)
    spurious = any(_is_spurious(run, fit.n_sampled) for run in fit.runs)
    return spurious or len(costs) < len(fit.runs) or max(costs) - min(costs) > tol


def _started_others(fit: MixtureFit) -> MixtureFit:
    """Find the other starting components."""
    seeds = spawned(fit.seed, fit.settings.n_starts)[fit.settings.n_first :]
    found = fit.context.journal.once(lambda: _starts(fit, seeds))
    return replace(fit, starts=[_as_asked(fit, state) for state in found])


def _tried_others(fit: MixtureFit) -> MixtureFit:
    """Take a few EM steps from the other starts."""
    return replace(fit, runs=[*fit.runs, *_tried(fit).runs])


def best_runs(
    runs: Sequence[Run[MixtureState]], n_rows: float, n_kept: int
) -> list[Run[MixtureState]]:
    """Return the runs with the largest likelihoods; spurious runs come last.

    The likelihood has no bound if a component shrinks to a few rows, which always lie in a plane.
    """
    return sorted(runs, key=lambda run: (_is_spurious(run, n_rows), run.last))[:n_kept]


def _is_spurious(run: Run[MixtureState], n_rows: float) -> bool:
    """Return whether a component is singular, or has too few rows for its covariance."""
    state = run.state
    shared = state.covariance_type == "tied" and state.degrees is None
    least = _LEAST if shared else _LEAST_OF_OWN
    if state.covariance_type == "full":
        least += _LEAST_PER_FEATURE * state.means.shape[1]
    return bool(_singular(run)) or n_rows * float(state.shares.min()) < least


def _singular(run: Run[MixtureState]) -> str:
    return run.scored.state.singular if run.scored is not None else ""


def _converged(fit: MixtureFit) -> MixtureFit:
    """Let the best starts converge on the sample."""
    schedule = replace(fit.settings.schedule, max_iter=TRIAL_STEPS + SAMPLE_STEPS)
    runs, n_rows = best_runs(fit.runs, fit.n_sampled, KEPT), fit.n_sampled
    after = iterate(fit.on_sample(), runs, schedule, fit.context)
    return replace(fit, runs=best_runs(after, n_rows, KEPT))


def _moved(fit: MixtureFit) -> MixtureFit:
    """Split and merge components of the best run while the likelihood on the sample rises."""
    try:
        return replace(fit, runs=fit.context.journal.once(lambda: _improved(fit)))
    except KeyboardInterrupt as interrupt:
        fit.context.stop(interrupt)
        return fit


def _improved(fit: MixtureFit) -> list[Run[MixtureState]]:
    own, best = fit.settings, fit.runs[0]
    problem, clearly = fit.on_sample(), own.tol or _USUAL_TOL
    brief = replace(own.schedule, max_iter=MOVE_STEPS)
    whole = replace(own.schedule, max_iter=MOVE_STEPS + SAMPLE_STEPS)
    for _ in range(ROUNDS):
        rows, weights = fit.whole_sample(best.state)
        found = moves(rows, weights, best.state, own.reg_covar, MOVES)
        degrees = best.state.degrees
        usual = FIRST_DEGREES if degrees is None else float(np.exp(np.log(degrees).mean()))
        states = [_as_asked(fit, state, usual) for state in found]
        if not states:
            break
        quiet = fit.context.apart()
        [first] = best_runs(iterate(problem, states, brief, quiet), fit.n_sampled, 1)
        if first.last > best.last + 10 * clearly:
            break
        [after] = iterate(problem, [first], whole, fit.context.apart())
        if after.last > best.last - clearly or _is_spurious(after, fit.n_sampled):
            break
        best = after
    return [best]


def _passed(fit: MixtureFit) -> MixtureFit:
    """Take EM steps over the table from the best run on the sample."""
    own = fit.settings
    problem = MixtureProblem(fit.passes, fit.survey.weight, own.reg_covar, own.tol, exact=True)
    best = best_runs(fit.runs, fit.n_sampled, 1)
    starts = [run.state for run in best] or fit.starts
    outcome = minimize(problem, starts, own.schedule, fit.context)
    if wrong := _singular(outcome.run):
        raise SingularComponentError(wrong)
    return replace(fit, runs=best, result=outcome)


def mixture_stages(
    settings: Settings, choose: Callable[[MixtureFit], MixtureFit] | None = None
) -> list[Stage[MixtureFit]]:
    """Return the stages of a fit, except that of the labels.

    `choose` is a function that chooses the number of components after the first pass; None if it is
    given.
    """
    stages = [Stage("seeds", _seeded), Stage("first pass", _surveyed, MixtureCosts.survey)]
    if choose is not None:
        stages.append(Stage("number of components", choose, MixtureCosts.number))
    if settings.chooses_type:
        stages.append(Stage("covariance type", _typed, MixtureCosts.types))
    stages.append(Stage("starting components", _started, MixtureCosts.starts))
    if settings.n_starts:
        stages += [
            Stage("trials", _tried, MixtureCosts.trials),
            Stage("other starts", _started_others, MixtureCosts.other_starts, _differ),
            Stage("other trials", _tried_others, MixtureCosts.other_trials, _differ),
            Stage("EM on the sample", _converged, MixtureCosts.on_sample),
            Stage("splits and merges", _moved, MixtureCosts.moves),
        ]
    return [*stages, Stage("passes", _passed, MixtureCosts.passes, after_stop=True)]
