"""Pictures of a fitted model, on matplotlib (the extra ``plot``).

Every function returns a figure whose label (``figure.get_label()``) describes it in a sentence, as
alternative text, and raises ImportError if matplotlib is not installed. A notebook shows each
figure once, at the end of its cell.
"""

from daskmm.plot.drift import drift
from daskmm.plot.figures import require_matplotlib as require_matplotlib
from daskmm.plot.fit import annealing_trace, feature_weights
from daskmm.plot.paths import bandwidth_path, distortion_choice, lam_path, n_clusters_path
from daskmm.plot.plane import projection
from daskmm.plot.profiles import cluster_profiles

__all__ = [
    "annealing_trace",
    "bandwidth_path",
    "cluster_profiles",
    "distortion_choice",
    "drift",
    "feature_weights",
    "lam_path",
    "n_clusters_path",
    "projection",
]
