"""Names of scikit-learn that are not public: its parameter constraints.

They are imported here and nowhere else, and were seen with scikit-learn 1.6 to 1.9. Its own
estimators declare their parameters with them, and so report bad values in the same words.
"""

from sklearn.utils._param_validation import Interval, RealNotInt, StrOptions

__all__ = ["Interval", "RealNotInt", "StrOptions"]
