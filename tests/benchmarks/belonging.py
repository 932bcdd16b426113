"""Memberships and outliers beside what knowing the mixture would give.

Run: python tests/benchmarks/belonging.py [draws]

Calibration: expected calibration error of `predict_proba` on rows held out, and its mean difference
from the posteriors of scikit-learn's GaussianMixture (spherical) that starts at the same centres.
Outliers: 5 % uniform noise over the bounding box, the share of it among as many flagged rows, by
`score_samples` and by the density of the true mixture, which no rule can better. Prints Markdown.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
from scipy.special import logsumexp
from sklearn.mixture import GaussianMixture

from daskmm import PowerKMeans

sys.path.insert(0, str(Path(__file__).parents[1]))

from _mixtures import calibration_error, matched, mixture


def calibration(p, separation, seed):
    rows, truth, centers = mixture(12_000, 6, p, separation, seed)
    model = PowerKMeans(6, random_state=0, n_init=4).fit(rows[:4000])
    found = model.predict_proba(rows[4000:])
    right = matched(centers, model.cluster_centers_)[found.argmax(axis=1)] == truth[4000:]
    normal = GaussianMixture(
        6, covariance_type="spherical", means_init=model.cluster_centers_, random_state=0
    ).fit(rows[:4000])
    apart = np.abs(found - normal.predict_proba(rows[4000:])).mean()
    return calibration_error(found.max(axis=1), right), apart


def outliers(k, p, seed):
    rows, _, centers = mixture(4750, k, p, 3.5, seed)
    noise = np.random.default_rng(seed).uniform(rows.min(axis=0), rows.max(axis=0), (250, p))
    both, bad = np.vstack([rows, noise]), np.arange(5000) >= 4750
    model = PowerKMeans(k, random_state=0, n_init=4).fit(both)
    squares = np.square(both[:, None] - centers).sum(axis=2)
    scores = model.score_samples(both), logsumexp(-squares / 2, axis=1)
    return [bad[np.argsort(score)[:250]].mean() for score in scores]


def table(cases, measure, draws, head):
    print(f"\n{head}\n|---|---|---|")
    for name, case in cases:
        found = np.array([measure(*case, seed) for seed in range(draws)])
        cells = (f"{each.mean():.3f} ({each.min():.3f} to {each.max():.3f})" for each in found.T)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    table(
        [(f"{p} features, {s} apart", (p, s)) for p in (2, 10) for s in (2.0, 3.0, 4.5)],
        calibration,
        draws,
        "| 6 clusters | calibration error | difference from GaussianMixture |",
    )
    table(
        [(f"{k} clusters, {p} features", (k, p)) for k, p in ((4, 3), (8, 3), (8, 5), (8, 10))],
        outliers,
        draws,
        "| 3.5 apart, 5 % noise | precision and recall | by the true density |",
    )
