"""Old names of what is public: they work for two minor versions, and say what to write instead."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Renaming(NamedTuple):
    """An old name, the new one, and the versions in which it was renamed and will be gone."""

    old: str
    new: str
    since: str
    removed: str

    def __str__(self) -> str:
        """Return what the warning says."""
        return (
            f"{self.old} was renamed to {self.new} in daskmm {self.since}; the old name goes in "
            f"{self.removed}."
        )


# All that there are, so that a test sees which are due.
RENAMINGS: list[Renaming] = []


def renamed_parameter(old: str, new: str, *, since: str, removed: str) -> Callable[[F], F]:
    """Decorate a function or an `__init__` whose parameter `old` has become `new`.

    The old name is taken as a keyword, with a FutureWarning at the line of the call. It is not in
    the signature, so that `get_params` and the reference know the new name alone.
    """

    def decorate(function: F) -> F:
        owner = function.__qualname__.removesuffix(".__init__")
        renaming = Renaming(f"The parameter {old} of {owner}", new, since, removed)
        RENAMINGS.append(renaming)

        @functools.wraps(function)
        def renamed_call(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(f"{owner} takes {new} or its old name {old}, not both.")
                warnings.warn(str(renaming), FutureWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return renamed_call  # type: ignore[return-value]

    return decorate


def renamed(
    module: str, names: dict[str, str], *, since: str, removed: str
) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that finds what has been renamed.

    Parameters
    ----------
    module : str
        Its ``__name__``.
    names : dict of str to str
        From old names to new ones of the same module.
    since, removed : str
        Versions.
    """
    renamings = {
        old: Renaming(f"{module}.{old}", f"{module}.{new}", since, removed)
        for old, new in names.items()
    }
    RENAMINGS.extend(renamings.values())

    def find(name: str) -> Any:
        if name not in renamings:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(str(renamings[name]), FutureWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return find
