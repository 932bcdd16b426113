"""What is sent to the tasks of a pass."""

import copy

from dask.sizeof import sizeof
from distributed.protocol import deserialize, serialize

from daskmm.engine.worker_task import Parcel


def test_a_parcel_reports_a_small_size_to_the_scheduler():
    parcel = Parcel(bytes(1 << 20))
    assert sizeof(parcel) < 100
    header, frames = serialize(parcel)
    assert deserialize(header, frames) == copy.deepcopy(parcel) == parcel
