"""Records of the rows of calls; a record replaces one with the same key, and old ones fade."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Generic, Protocol, Self, TypeVar

from daskmm.storage.records import registered


class Record(Protocol):
    """Record of the rows of one call, or of several."""

    @property
    def n_rows(self) -> int:
        """Number of rows, which does not fade."""

    @property
    def kept(self) -> float:
        """Share of their sample weights that the rows of a single call still have."""

    def faded(self, factor: float) -> Self:
        """Return the record of the same rows with their sample weights multiplied by a factor."""

    def __add__(self, other: Self) -> Self:
        """Return the record of the rows of both."""


R = TypeVar("R", bound=Record)


@registered
@dataclass(frozen=True)
class KeyedRecords(Generic[R]):
    """Records of all rows so far."""

    unkeyed: R | None = None  # sum of the records of the calls without a key
    keyed: dict[str, R] = field(default_factory=dict)  # key of a call -> its record
    n_calls: int = 0

    @property
    def total(self) -> R:
        """Sum of all records, in the order of their keys."""
        records = [self.keyed[key] for key in sorted(self.keyed)]
        return reduce(add, records if self.unkeyed is None else [self.unkeyed, *records])

    def kept(self, key: str | None) -> float:
        """Return the share of their weight that the rows of a key still have; 1 for a new key."""
        return 1.0 if key is None or key not in self.keyed else self.keyed[key].kept

    def each(self, change: Callable[[R], R]) -> Self:
        """Return the records with a function applied to each of them."""
        keyed = {key: change(record) for key, record in self.keyed.items()}
        unkeyed = None if self.unkeyed is None else change(self.unkeyed)
        return replace(self, unkeyed=unkeyed, keyed=keyed)

    def after(self, record: R, key: str | None, factor: float = 1.0) -> Self:
        """Return the records after a call: earlier ones fade, and one with its key is replaced."""
        record = record.faded(self.kept(key))
        faded = self.each(lambda earlier: earlier.faded(factor))
        keyed, unkeyed = faded.keyed, faded.unkeyed
        if key is not None:
            keyed = {**keyed, key: record}
        else:
            unkeyed = record if unkeyed is None else unkeyed + record
        return replace(self, unkeyed=unkeyed, keyed=keyed, n_calls=self.n_calls + 1)
