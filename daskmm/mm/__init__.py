"""The MM algorithm without the data: annealing, stopping, history, journal and checkpoint.

Every algorithm of the library repeats one step: majorise the objective at the current state, and
minimise the majorising function (MM). A `problem.Problem` computes the step. `driver` chooses the
power s of the next step, and decides when to stop; `context` and `journal` hold what the stages of
a fit share; `checkpoint` keeps the journal on disk.
"""

from daskmm.mm.problem import IterationRecord

__all__ = ["IterationRecord"]
