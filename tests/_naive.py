"""Oracles: the definitions as they are printed, slow and in high precision.

Nothing of the library is used here, and none of its devices (ratios, logarithms, matrix
products), so that an error would have to be made twice to go unseen.
"""

import math
from decimal import Context, Decimal, localcontext

import numpy as np

# Powers such as 1e300 ** -1e12 need an exponent of 15 digits.
HIGH = Context(prec=70, Emax=10**17, Emin=-(10**17))


def power_mean(distances, s):
    """M_s of one row and φ = ∂M_s/∂d, by their definitions.

    M_s = (1/k Σ_j d_j^s)^(1/s), φ_j = 1/k d_j^(s−1) (1/k Σ_l d_l^s)^(1/s−1); where the smallest
    distance is 0 or ∞ the limit as all distances at it go there together, and s = −∞ is the
    nearest centre, the first when tied.
    """
    k = len(distances)
    smallest = min(distances)
    if s == -math.inf:
        nearest = list(distances).index(smallest)
        return [1.0 if j == nearest else 0.0 for j in range(k)], smallest
    with localcontext(HIGH):
        power = Decimal(s)
        if smallest in (0, math.inf):
            # Such distances ε and all others without a share: M = ε (c/k)^(1/s).
            tied = [d == smallest for d in distances]
            share = Decimal(sum(tied)) / k
            phi = share ** (1 / power - 1) / k
            return [float(phi) if t else 0.0 for t in tied], float(smallest)
        d = [None if v == math.inf else Decimal(v) for v in distances]
        powers = [Decimal(0) if v is None else (power * v.ln()).exp() for v in d]
        log_mean = (sum(powers) / k).ln()
        outer = ((1 / power - 1) * log_mean).exp() / k
        phi = [0.0 if v is None else float(u / v * outer) for u, v in zip(powers, d, strict=True)]
        return phi, float((log_mean / power).exp())


def power_means(distances, s):
    """φ and M_s of several rows, as arrays."""
    pairs = [power_mean([float(d) for d in row], s) for row in distances]
    return np.array([phi for phi, _ in pairs]), np.array([value for _, value in pairs])


def exact_squared_distances(rows, centers, feature_weights=None):
    """Σ_l w_l (x_il − θ_jl)², exactly, as floats are integers over powers of 2; rounded once."""
    weights = np.ones(len(rows[0])) if feature_weights is None else feature_weights
    (w,), unit_of_weights = _integers([weights])
    table, unit = _integers([*rows, *centers])
    x, t = (np.array(part, object) for part in (table[: len(rows)], table[len(rows) :]))
    sums = ((x[:, None] - t) ** 2 * np.array(w, object)).sum(axis=2)
    return (sums / (unit_of_weights * unit**2)).astype(float)


def _integers(table):
    """Return integers, and by what to divide them to have the values of a table."""
    ratios = [[float(value).as_integer_ratio() for value in row] for row in table]
    common = max(denominator for row in ratios for _, denominator in row)
    return [[number * (common // divisor) for number, divisor in row] for row in ratios], common


def squared_distances(rows, centers, feature_weights=None):
    """Σ_l w_l (x_il − θ_jl)² by loops."""
    p = len(rows[0])
    w = [1.0] * p if feature_weights is None else feature_weights
    return np.array(
        [[math.fsum(w[f] * (x[f] - t[f]) ** 2 for f in range(p)) for t in centers] for x in rows]
    )


def power_k_means_step(rows, centers, s, sample_weight=None):
    """One MM step of power k-means.

    Returns the new centres and the mean of the power means before the step.
    """
    new, objective, _ = _centers_step(rows, centers, s, sample_weight, None)
    return new, objective


def entropy_step(rows, centers, feature_weights, s, lam, sample_weight=None):
    """One MM step of EWP: θ, then w from D_l = Σ φ (x − θ)² with the new θ.

    Returns the new centres, the new weights, and f before the step. `lam` is per unit of sample
    weight.
    """
    v = np.ones(len(rows)) if sample_weight is None else sample_weight
    new, objective, phi = _centers_step(rows, centers, s, v, feature_weights)
    n, k, p = len(rows), len(centers), len(rows[0])
    with localcontext(HIGH):
        exponentials = []
        for f in range(p):
            dispersion = math.fsum(
                v[i] * phi[i, j] * (rows[i][f] - new[j][f]) ** 2 for i in range(n) for j in range(k)
            )
            exponentials.append((-Decimal(dispersion / math.fsum(v)) / Decimal(lam)).exp())
        total = sum(exponentials)
        weights = np.array([float(e / total) for e in exponentials])
    entropy = math.fsum(w * math.log(w) for w in feature_weights if w > 0)
    return new, weights, objective + lam * entropy


def lloyd_step(rows, centers, sample_weight=None):
    """Means of the rows nearest to each centre; a centre without rows stays."""
    v = [1.0] * len(rows) if sample_weight is None else sample_weight
    members = [[] for _ in centers]
    for x, weight in zip(rows, v, strict=True):
        distances = [math.fsum((a - b) ** 2 for a, b in zip(x, t, strict=True)) for t in centers]
        members[distances.index(min(distances))].append((x, weight))
    new = []
    for rows_of_center, old in zip(members, centers, strict=True):
        total = math.fsum(weight for _, weight in rows_of_center)
        columns = range(len(old))
        mean = [math.fsum(weight * x[f] for x, weight in rows_of_center) for f in columns]
        new.append([m / total for m in mean] if total > 0 else list(old))
    return np.array(new)


def cosine_step(rows, centers, s, sample_weight=None):
    """One MM step of spherical power k-means: D = 1 − cos, centres of length 1.

    Returns the new centres and the mean of the power means before the step.
    """
    n, v = len(rows), np.ones(len(rows)) if sample_weight is None else sample_weight
    units = [[a / math.sqrt(math.fsum(b * b for b in x)) for a in x] for x in rows]
    distances = [
        [max(0.0, 1 - math.fsum(a * b for a, b in zip(x, t, strict=True))) for t in centers]
        for x in units
    ]
    phi, values = power_means(distances, s)
    new = []
    for j, old in enumerate(centers):
        total = [
            math.fsum(v[i] * phi[i, j] * units[i][f] for i in range(n)) for f in range(len(old))
        ]
        length = math.sqrt(math.fsum(a * a for a in total))
        new.append([a / length for a in total] if length > 0 else list(old))
    return np.array(new), math.fsum(v * values) / math.fsum(v)


def critical_power(rows, sample_weight=None):
    """s_crit = 1 − 1/(2 λ_max(E[uuᵀ])), u the directions of the rows from their mean."""
    rows = np.asarray(rows, dtype=np.float64)
    v = np.ones(len(rows)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    centred = rows - (v[:, None] * rows).sum(axis=0) / v.sum()
    p = rows.shape[1]
    expectation = np.zeros((p, p))
    total = 0.0
    for x, weight in zip(centred, v, strict=True):
        norm = math.sqrt(math.fsum(x * x))
        if norm > 0:
            expectation += weight * np.outer(x, x) / norm**2
            total += weight
    return 1.0 - 1.0 / (2.0 * np.linalg.eigvalsh(expectation / total)[-1])


def _centers_step(rows, centers, s, sample_weight, feature_weights):
    n, k, p = len(rows), len(centers), len(rows[0])
    v = np.ones(n) if sample_weight is None else sample_weight
    phi, values = power_means(squared_distances(rows, centers, feature_weights), s)
    new = np.array(centers, dtype=np.float64)
    for j in range(k):
        total = math.fsum(v[i] * phi[i, j] for i in range(n))
        for f in range(p):
            if total > 0:
                new[j, f] = math.fsum(v[i] * phi[i, j] * rows[i][f] for i in range(n)) / total
    objective = math.fsum(v[i] * values[i] for i in range(n)) / math.fsum(v)
    return new, objective, phi


def kernel_distances(gram, memberships):
    """K_ii − 2 Σ_l W_lj K_il + Σ_lm W_lj W_mj K_lm of every row i and mean j."""
    diagonal = np.array([gram[i][i] for i in range(len(gram))])
    cross = np.einsum("lj,il->ij", memberships, gram)
    norms = np.einsum("lj,mj,lm->j", memberships, memberships, gram)
    return np.maximum(diagonal[:, None] - 2.0 * cross + norms, 0.0)


def kernel_fit(grams, memberships, s0, eta, steps, sample_weight=None, lam=1.0):
    """(Multi-)kernel power k-means from given memberships, for exactly `steps` steps.

    Returns what the estimators call by the same names. `lam` is per unit of sample weight, and
    the kernel weights are those of S_l = Σ φ d²_l with the new means.
    """
    n, k = memberships.shape
    v = np.ones(n) if sample_weight is None else sample_weight
    total = math.fsum(v)
    W, s = np.array(memberships), s0
    alpha = [1.0 / len(grams)] * len(grams)
    history = []
    for _ in range(steps):
        y = sum(a * kernel_distances(gram, W) for a, gram in zip(alpha, grams, strict=True))
        phi, values = power_means(y, s)
        penalty = lam * math.fsum(a * math.log(a) for a in alpha if a > 0)
        history.append(math.fsum(v * values) / total + penalty)
        for j in range(k):
            mass = v * phi[:, j]
            if math.fsum(mass) > 0:
                W[:, j] = mass / math.fsum(mass)
        dispersions = [
            math.fsum((v[:, None] * phi * kernel_distances(gram, W)).ravel()) / total
            for gram in grams
        ]
        least = min(dispersions)
        shares = [math.exp(-(dispersion - least) / lam) for dispersion in dispersions]
        alpha = [share / math.fsum(shares) for share in shares]
        s *= eta
    y = sum(a * kernel_distances(gram, W) for a, gram in zip(alpha, grams, strict=True))
    return {
        "objective_history_": np.array(history),
        "memberships_": W,
        "kernel_weights_": np.array(alpha),
        "kernel_norms_": np.array([np.einsum("lj,mj,lm->j", W, W, gram) for gram in grams]),
        "inertia_": math.fsum(v * y.min(axis=1)),
        "labels_": y.argmin(axis=1),
    }
