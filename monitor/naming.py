"""Under which names functions are counted on the metrics page: their own, those that rules give, or packages. Pure.

Totals are kept by the label of a function and never by these names, so rules may change at any time. Several functions
may get one name; what rules keep out is counted as `(other)`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from monitor.budget import KEPT_OUT, OTHER, PREFERRED
from monitor.catalog import Catalog
from monitor.grouping import package_of
from monitor.profiles.columns import Floats, FunctionName, Ids, Ints
from monitor.profiles.names import CONTROL, LONGEST_LABEL, cut
from monitor.settings import ARROW
from monitor.sums import grown
from monitor.tables import Measures

OTHER_NUMBER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which functions may be series, and as what. Patterns are searched for in labels as they are without rules.

    Attributes:
        packages: only functions of these; all where there are none.
        include, exclude: only functions that one of these, and none of those, fits.
        rename: "PATTERN => REPLACEMENT", one after the other.
        pinned: functions that are chosen first.
    """

    packages: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()

    def text(self) -> str:
        """Return a form that can be kept."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Rules:
        """Read that form."""
        return cls(**{name: tuple(values) for name, values in json.loads(text).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a label is counted as.

    Attributes:
        name: None keeps it out.
    """

    name: str | None
    pinned: bool = False


Namer = Callable[[FunctionName, str], Named]
"""Names a function, given with its label."""


def namer_of(rules: Rules) -> Namer:
    """Make what names functions by rules."""
    include, exclude, pinned = (
        [re.compile(each) for each in patterns] for patterns in (rules.include, rules.exclude, rules.pinned)
    )
    renames = [(re.compile(pattern), new) for pattern, _, new in (each.partition(ARROW) for each in rules.rename)]

    def name(function: FunctionName, label: str) -> Named:
        if (
            (rules.packages and package_of(function) not in rules.packages)
            or (include and not any(each.search(label) for each in include))
            or any(each.search(label) for each in exclude)
        ):
            return Named(name=None)
        text = label
        for pattern, new in renames:
            text = pattern.sub(new, text)
        text = CONTROL.sub("?", text).strip()
        text = cut(text, LONGEST_LABEL) if len(text) > LONGEST_LABEL else text
        return Named(name=text or None, pinned=any(each.search(label) for each in pinned))

    return name


def package_namer(function: FunctionName, _label: str) -> Named:
    """Count a function as its package."""
    return Named(name=package_of(function))


class Names:
    """Numbers texts in order of first sight; `(other)` has number 0. Only grows, so any thread may read `texts`."""

    def __init__(self) -> None:
        self.texts = [OTHER]
        self._numbers = {OTHER: OTHER_NUMBER}

    def number(self, text: str) -> int:
        """Number a text."""
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number


class Naming:
    """The names of a catalogue's labels; takes up new labels as they come.

    A label that several functions share is named by the first of them.

    Args:
        names: may be shared with other namings of the same catalogue.
    """

    def __init__(self, catalog: Catalog, names: Names, namer: Namer) -> None:
        self._catalog = catalog
        self._names = names
        self._namer = namer
        self._functions = 0
        self._labels = 0
        self._number = np.zeros(0, dtype=np.int32)
        self._preference = np.zeros(0)

    def folded(self, labels: Ids, sums: Measures) -> tuple[Ids, Measures]:
        """Add sums by label up by name; the result is a copy, ordered by number."""
        self.take_up()
        numbers, place = np.unique(self._number[labels], return_inverse=True)

        def counts(values: Ints) -> Ints:
            total = np.zeros(len(numbers), dtype=np.int64)
            np.add.at(total, place, values)
            return total

        def seconds(values: Floats) -> Floats:
            return np.bincount(place, weights=values, minlength=len(numbers)).astype(np.float64, copy=False)

        return numbers, Measures(
            calls=counts(sums.calls),
            primitive_calls=counts(sums.primitive_calls),
            self_seconds=seconds(sums.self_seconds),
            cumulative_seconds=seconds(sums.cumulative_seconds),
        )

    def preference(self, numbers: Ids) -> Floats:
        """Return what the score of each name is raised by."""
        return self._preference[numbers]

    def take_up(self) -> None:
        """Name the labels that are new."""
        catalog = self._catalog
        for function in range(self._functions, len(catalog.functions)):
            label = int(catalog.function_label[function])
            if label >= self._labels:  # labels are numbered with the first function that has them
                self._labels = label + 1
                self._name(label, catalog.functions[function], catalog.labels[label])
        self._functions = len(catalog.functions)

    def _name(self, label: int, function: FunctionName, text: str) -> None:
        named = self._namer(function, text)
        number = OTHER_NUMBER if named.name is None else self._names.number(named.name)
        self._number = grown(self._number, label + 1)
        self._preference = grown(self._preference, number + 1)
        self._number[label] = number
        if number == OTHER_NUMBER:
            self._preference[number] = KEPT_OUT
        elif named.pinned:
            self._preference[number] = PREFERRED
