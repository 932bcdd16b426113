"""The MM algorithm without the data: annealing, stopping, history, journal and checkpoint.

Every algorithm of the library repeats one step: majorise the objective at the current state, and
minimise the majorising function (MM). What the step computes is a `problem.Problem`; `driver`
decides at which power s the next one is taken, and when to stop; `context` and `journal` hold what
the stages of a fit share; `checkpoint` keeps the journal on disk.
"""

from daskmm.mm.problem import IterationRecord

__all__ = ["IterationRecord"]
