"""The series budgets of all phases, for functions and for packages, and their durable form. What is shown is durable
first, so a restart shows it again. Durable are names and not their numbers, so rules may have changed meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import numpy as np

from monitor.budget import KEPT_OUT, OTHER, Amount, GroupBudget, Shown
from monitor.catalog import Catalog
from monitor.index import Group, Index
from monitor.naming import Names, Naming, Rules, namer_of, package_namer
from monitor.profiles.columns import Ids
from monitor.store import Store
from monitor.store_columns import Columns, rows_of, text
from monitor.tables import Measures

PACKAGES_PER_PHASE = 30
"""A training loop runs through about ten packages; imports before the first step through a hundred small ones."""

RULES_KEY = "function_rules"
Table = Literal["budget", "package_budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Budgets that should change, by group, and the rules by which their functions are named from then on.

    Attributes:
        rules, naming: None where they stay.
    """

    budgets: Mapping[int, GroupBudget] = field(default_factory=dict)
    rules: Rules | None = None
    naming: Naming | None = None

    def __bool__(self) -> bool:
        return bool(self.budgets) or self.rules is not None


class Budgets:
    """One budget for each group of an index, by the group's number.

    Attributes:
        limit: how many series of a phase may grow; may be changed at any time.
        version: rises with every change of what is shown.
        names: the texts of numbers.
        refused: by group, how many functions got no series at a choice because there was no room, added up.
    """

    def __init__(self, naming: Naming, names: Names, *, limit: int, table: Table) -> None:
        self.limit = limit
        self.version = 0
        self.names = names
        self.refused: Counter[int] = Counter()
        self._naming = naming
        self._table = table
        self._budgets: dict[int, GroupBudget] = {}
        self._chosen_at: dict[int, int] = {}
        self._planned_at: dict[int, int] = {}

    def of(self, number: int) -> GroupBudget:
        """Return a group's budget; one that has none yet shows nothing."""
        budget = self._budgets.get(number)
        if budget is None or budget.limit != self.limit:
            budget = self._budgets[number] = replace(budget or GroupBudget(limit=self.limit), limit=self.limit)
        return budget

    def totals(self, group: Group) -> tuple[Ids, Measures]:
        """Return a copy of a group's totals by the number of the name that they are shown under."""
        return self._naming.folded(*group.labels.all())

    def plan(self, index: Index) -> Changes:
        """Return the budgets that should change, for groups with new spans since they were last settled.

        No totals may be added between `plan` and `apply`: a demoted series would be frozen at what it had before.
        """
        changes: dict[int, GroupBudget] = {}
        for number, group in enumerate(index.groups):
            if self._chosen_at.get(number) == group.spans:
                continue
            before = self.of(number)
            labels, sums = self.totals(group)
            choice = before.choice(labels, sums, self._naming.preference(labels))
            self.refused[number] += choice.refused
            after = before.following(labels, sums, choice)
            if after is before:
                self._chosen_at[number] = group.spans
            else:
                self._planned_at[number] = group.spans
                changes[number] = after
        return Changes(budgets=changes)

    def apply(self, changes: Changes) -> None:
        """Show what was made durable."""
        self.version += 1
        self._budgets.update(changes.budgets)
        if changes.naming is not None:
            self._naming = changes.naming
            self._chosen_at.clear()
        else:
            self._chosen_at.update({number: self._planned_at[number] for number in changes.budgets})

    def save(self, store: Store, changes: Changes) -> None:
        """Make changes durable. Blocks; to be followed by `apply`."""
        with store.transaction():
            store.replace_groups(self._table, list(changes.budgets), budget_columns(changes.budgets, self.names))
            if changes.rules is not None:
                store.set_meta(RULES_KEY, changes.rules.text())

    def load(self, store: Store) -> None:
        """Take up what was shown before, and the catalogue's names."""
        self._naming.take_up()
        shown: dict[int, dict[int, Shown]] = {}
        floors: dict[int, Amount] = {}
        for row in rows_of(store.read_table(f"SELECT * FROM {self._table}")):
            base, before = (amount_of(row, prefix) for prefix in ("base", "before"))
            if row["name"] == OTHER:
                floors[row["grp"]] = before
            else:
                state = Shown(active=row["active"], base=base, before=before)
                shown.setdefault(row["grp"], {})[self.names.number(row["name"])] = state
        self._budgets = {
            number: GroupBudget(limit=self.limit, shown=shown.get(number, {}), floor=floor, published=True)
            for number, floor in floors.items()
        }


class FunctionBudgets(Budgets):
    """The budgets of functions, which rules may name.

    Attributes:
        rules: what is wanted; `plan` leads there.
    """

    def __init__(self, catalog: Catalog, *, limit: int, rules: Rules | None = None) -> None:
        self.rules = self._rules = rules or Rules()
        self._catalog = catalog
        names = Names()
        super().__init__(Naming(catalog, names, namer_of(self.rules)), names, limit=limit, table="budget")

    def plan(self, index: Index) -> Changes:
        """Return what should change; while the rules are new, the state in which each series stands where it stood."""
        if self.rules == self._rules:
            return super().plan(index)
        naming = Naming(self._catalog, self.names, namer_of(self.rules))
        changes: dict[int, GroupBudget] = {}
        for number, group in enumerate(index.groups):
            after = naming.folded(*group.labels.all())
            kept = set(after[0][naming.preference(after[0]) != KEPT_OUT].tolist())
            changes[number] = self.of(number).renamed(self.totals(group), after, kept)
        published = {number: budget for number, budget in changes.items() if budget.published}
        return Changes(budgets=published, rules=self.rules, naming=naming)

    def apply(self, changes: Changes) -> None:
        """Show what was made durable."""
        super().apply(changes)
        if changes.rules is not None:
            self._rules = changes.rules


@dataclass(frozen=True, slots=True, kw_only=True)
class AllBudgets:
    """The budgets of both kinds of series."""

    functions: FunctionBudgets
    packages: Budgets

    @property
    def each(self) -> tuple[Budgets, Budgets]:
        """Both."""
        return self.functions, self.packages

    @property
    def version(self) -> int:
        """Rises with every change of what is shown."""
        return self.functions.version + self.packages.version


def new_budgets(catalog: Catalog, *, limit: int, rules: Rules | None = None) -> AllBudgets:
    """Make budgets of which nothing is shown yet."""
    names = Names()
    packages = Naming(catalog, names, package_namer)
    return AllBudgets(
        functions=FunctionBudgets(catalog, limit=limit, rules=rules),
        packages=Budgets(packages, names, limit=PACKAGES_PER_PHASE, table="package_budget"),
    )


def load_budgets(store: Store, catalog: Catalog, *, limit: int) -> AllBudgets:
    """Read what was shown before, under the rules of then."""
    kept = store.get_meta(RULES_KEY)
    budgets = new_budgets(catalog, limit=limit, rules=None if kept is None else Rules.from_text(kept))
    for each in budgets.each:
        each.load(store)
    return budgets


def amount_of(row: Mapping[str, object], prefix: str) -> Amount:
    """Take one amount out of a row."""
    return Amount(**{name: row[f"{prefix}_{name}"] for name in asdict(Amount())})  # type: ignore[arg-type]


def budget_columns(budgets: Mapping[int, GroupBudget], names: Names) -> Columns:
    """Lay budgets out as the table has them."""
    rows = [
        (number, name, state)
        for number, budget in budgets.items()
        for name, state in [
            (OTHER, Shown(active=False, before=budget.floor)),
            *((names.texts[label], state) for label, state in budget.shown.items()),
        ]
    ]
    columns: Columns = {
        "grp": np.asarray([number for number, _, _ in rows], dtype=np.int32),
        "name": text([name for _, name, _ in rows]),
        "active": np.asarray([state.active for _, _, state in rows], dtype=np.bool_),
    }
    for prefix in ("base", "before"):
        for name, value in asdict(Amount()).items():
            values = [getattr(getattr(state, prefix), name) for _, _, state in rows]
            columns[f"{prefix}_{name}"] = np.asarray(values, dtype=np.float64 if isinstance(value, float) else np.int64)
    return columns
