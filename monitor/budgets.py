"""The series budgets of all phases, and their durable form. What is shown is durable first, so a restart shows it
again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

import numpy as np

from monitor.budget import Amount, GroupBudget, Shown
from monitor.index import Index
from monitor.store import Store
from monitor.store_columns import Columns, rows_of

FLOOR_LABEL = -1

Changes = Mapping[int, GroupBudget]


class Budgets:
    """One budget for each group of an index, by the group's number.

    Attributes:
        limit: how many functions of a phase may be series that grow; may be changed at any time.
        version: rises with every change of what is shown.
    """

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        self.version = 0
        self._budgets: dict[int, GroupBudget] = {}
        self._chosen_at: dict[int, int] = {}
        self._planned_at: dict[int, int] = {}

    def of(self, number: int) -> GroupBudget:
        """Return a group's budget; one that has none yet shows nothing."""
        budget = self._budgets.get(number)
        if budget is None or budget.limit != self.limit:
            budget = self._budgets[number] = replace(budget or GroupBudget(limit=self.limit), limit=self.limit)
        return budget

    def plan(self, index: Index) -> Changes:
        """Return the budgets that should change, for groups with new spans since they were last settled.

        No totals may be added between `plan` and `apply`: a demoted series would be frozen at what it had before.
        """
        changes: dict[int, GroupBudget] = {}
        for number, group in enumerate(index.groups):
            if self._chosen_at.get(number) == group.spans:
                continue
            before = self.of(number)
            after = before.chosen(*group.labels.all())
            if after is before:
                self._chosen_at[number] = group.spans
            else:
                self._planned_at[number] = group.spans
                changes[number] = after
        return changes

    def apply(self, changes: Changes) -> None:
        """Show what was made durable."""
        self.version += 1
        self._budgets.update(changes)
        self._chosen_at.update({number: self._planned_at[number] for number in changes})

    def save(self, store: Store, changes: Changes) -> None:
        """Make changes durable. Blocks; to be followed by `apply`."""
        with store.transaction():
            store.replace_groups("budget", list(changes), budget_columns(changes))

    @classmethod
    def load(cls, store: Store, *, limit: int) -> Budgets:
        """Read what was shown before."""
        budgets = cls(limit=limit)
        shown: dict[int, dict[int, Shown]] = {}
        floors: dict[int, Amount] = {}
        for row in rows_of(store.read_table("SELECT * FROM budget")):
            base, before = (amount_of(row, prefix) for prefix in ("base", "before"))
            if row["label"] == FLOOR_LABEL:
                floors[row["grp"]] = before
            else:
                shown.setdefault(row["grp"], {})[row["label"]] = Shown(active=row["active"], base=base, before=before)
        budgets._budgets = {
            number: GroupBudget(limit=limit, shown=shown.get(number, {}), floor=floor, published=True)
            for number, floor in floors.items()
        }
        return budgets


def amount_of(row: Mapping[str, object], prefix: str) -> Amount:
    """Take one amount out of a row."""
    return Amount(**{name: row[f"{prefix}_{name}"] for name in asdict(Amount())})  # type: ignore[arg-type]


def budget_columns(changes: Changes) -> Columns:
    """Lay budgets out as the table has them."""
    rows = [
        (number, label, state)
        for number, budget in changes.items()
        for label, state in [(FLOOR_LABEL, Shown(active=False, before=budget.floor)), *budget.shown.items()]
    ]
    columns: Columns = {
        "grp": np.asarray([number for number, _, _ in rows], dtype=np.int32),
        "label": np.asarray([label for _, label, _ in rows], dtype=np.int32),
        "active": np.asarray([state.active for _, _, state in rows], dtype=np.bool_),
    }
    for prefix in ("base", "before"):
        for name, value in asdict(Amount()).items():
            values = [getattr(getattr(state, prefix), name) for _, _, state in rows]
            columns[f"{prefix}_{name}"] = np.asarray(values, dtype=np.float64 if isinstance(value, float) else np.int64)
    return columns
