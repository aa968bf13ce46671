"""Budgets over a whole life: what is shown adds up to what was profiled and never falls, whatever happens meanwhile."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from monitor.budget import OTHER, Amount, GroupBudget
from monitor.budgets import AllBudgets, Budgets, load_budgets, new_budgets
from monitor.catalog import Catalog, CatalogMark, SeriesKey
from monitor.checkpoint import load_index, save_totals
from monitor.index import Group, Index
from monitor.naming import Rules
from monitor.store import Store, open_store
from monitor.sums import Sums
from tests.test_budget import Row, active, add
from tests.test_index import NODE_0, NODE_1, Recorded, numbered, train

FUNCTIONS = [
    *((f"/job/app/model_{number}.py", number, "forward") for number in range(3)),
    ("/job/app/model_0.py", 7, "backward"),
    *((f"/env/lib/python3.11/site-packages/torch/nn_{number}.py", 0, "call") for number in range(2)),
    ("/env/lib/python3.11/site-packages/numpy/core.py", 3, "dot"),
    ("~", 0, "<built-in method builtins.len>"),
]
RULES = st.sampled_from(
    [
        Rules(),
        Rules(packages=("application code",), pinned=("model_2",)),
        Rules(exclude=("len",), rename=(r"_\d\.py:\d+ => _0.py:0",)),
        Rules(include=("forward|call",), rename=("^torch/nn_1 => torch/nn_0",), pinned=("call",)),
        Rules(rename=(".*backward.* => ", r"^.*\(call\) => torch")),
    ]
)
SECONDS = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, 0.1, 1 / 3, 1e-12, -1.0]))
ROWS = st.lists(st.tuples(st.sampled_from(FUNCTIONS), SECONDS), max_size=12)
LIMITS = st.integers(1, 6)


class Life(RuleBasedStateMachine):
    """A daemon's state through profiles, choices, restarts, retention and rules, scraped after each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.store = self.stack.enter_context(open_store(None))
        self.wanted = Rules()
        self.limit = 2
        self.mark = CatalogMark()
        self.spans = 0
        self.truth: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.before: dict[tuple[str, str, str], Mapping[str, Amount]] = {}
        self.restart()

    def teardown(self) -> None:
        self.stack.close()

    @initialize(limit=LIMITS)
    def begin(self, limit: int) -> None:
        self.set_limit(limit)

    @rule(node=st.sampled_from([NODE_0, NODE_0, NODE_1]), rows=ROWS, mode=st.sampled_from(["train", "train", "eval"]))
    def profile(self, node: SeriesKey, rows: Sequence[tuple[tuple[str, int, str], float]], mode: str) -> None:
        name = train(self.spans).replace("train", mode)
        calls = [(function, None, 1, 1, own, own) for function, own in dict(rows).items()]
        self.spans += 1
        spans, profiles = numbered(
            self.index.catalog, [Recorded(series=node, name=name, rows=calls)], self.index.next_number
        )
        self.mark = self.store.commit(spans, profiles, self.index.catalog, self.mark)
        self.index.add_rows(spans.number, self.index.add_spans(spans), profiles)
        self.truth[node.node, mode] += [max(row[4], 0.0) for row in calls]

    @rule()
    def choose(self) -> None:
        for budgets in self.budgets.each:
            if changes := budgets.plan(self.index):
                budgets.save(self.store, changes)
                budgets.apply(changes)

    @rule(rules=RULES, restart=st.booleans(), choose=st.booleans())
    def change_rules(self, rules: Rules, restart: bool, choose: bool) -> None:
        self.wanted = self.budgets.functions.rules = rules
        if restart:
            self.restart()
        if choose:
            self.choose()

    @rule(limit=LIMITS)
    def set_limit(self, limit: int) -> None:
        self.limit = self.budgets.functions.limit = limit

    @rule(kept=st.integers(0, 9))
    def drop_old(self, kept: int) -> None:
        numbers = self.index.spans.column("number")
        numbers = numbers[: max(0, len(numbers) - kept)].copy()
        with self.store.transaction():
            save_totals(self.store, self.index)
            self.store.drop_rows(numbers)
        self.index.drop_spans(numbers)

    @rule()
    def restart(self) -> None:
        self.index: Index = load_index(self.store)
        self.budgets: AllBudgets = load_budgets(self.store, self.index.catalog, limit=self.limit)
        self.budgets.functions.rules = self.wanted

    @invariant()
    def shown_adds_up_and_never_falls(self) -> None:
        for number, group in enumerate(self.index.groups):
            for kind, budgets in zip(("function", "package"), self.budgets.each, strict=True):
                if budgets.of(number).published:
                    self.check(kind, group, shown(budgets, number, group))

    def check(self, kind: str, group: Group, now: Mapping[str, Amount]) -> None:
        where = (group.key.node, "train" if group.key.start_mode == 1 else "eval")
        total = math.fsum(amount.self_seconds for amount in now.values())
        assert total == pytest.approx(math.fsum(self.truth[where]), rel=1e-9, abs=1e-9)
        before = self.before.get((kind, *where), {})
        assert before.keys() <= now.keys()
        for name, amount in before.items():
            assert all(new >= old for old, new in zip(astuple(amount), astuple(now[name]), strict=True)), name
        self.before[kind, *where] = now


def shown(budgets: Budgets, number: int, group: Group) -> dict[str, Amount]:
    """Return all series of a phase by their names."""
    series = budgets.of(number).series(*budgets.totals(group))
    named = {budgets.names.texts[label]: amount for label, amount in series.shown.items()}
    assert OTHER not in named
    return named | {OTHER: series.other}


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


# -- rules at work ---------------------------------------------------------------------------------------------------


def started(*, limit: int, rules: Rules | None = None) -> tuple[AllBudgets, Index]:
    """Make budgets under rules, and an index without spans."""
    index = Index(Catalog())
    return new_budgets(index.catalog, limit=limit, rules=rules), index


def take(budgets: AllBudgets, index: Index, spans: Sequence[Recorded], into: Store | None = None) -> dict[str, float]:
    """Add spans, choose until nothing changes; returns the self seconds of the first phase by function."""
    if spans:
        rows, profiles = numbered(index.catalog, spans, index.next_number)
        index.add_rows(rows.number, index.add_spans(rows), profiles)
    with nullcontext(into) if into is not None else open_store(None) as store:
        for each in budgets.each:
            while changes := each.plan(index):
                each.save(store, changes)
                each.apply(changes)
    return {name: amount.self_seconds for name, amount in shown(budgets.functions, 0, index.groups[0]).items()}


def span(step: int, **seconds: float) -> Recorded:
    """Make a span of a step; `forward=1` is `app/model.py:1(forward)`, `torch_add=1` a function of torch."""
    rows = []
    for name, own in seconds.items():
        package, _, word = name.rpartition("_")
        file = f"/lib/python3.11/site-packages/{package}/ops.py" if package else "/job/app/model.py"
        rows.append(((file, 1, word), None, 1, 1, own, own))
    return Recorded(series=NODE_0, name=train(step), rows=rows)


def functions_of(rules: Rules, spans: Sequence[Recorded]) -> dict[str, float]:
    """Return the series that rules make of spans."""
    return take(*started(limit=5, rules=rules), spans)


def test_only_functions_of_some_packages_are_shown_and_the_rest_counts() -> None:
    spans = [span(0, forward=1.0, torch_add=2.0, numpy_dot=4.0)]
    assert functions_of(Rules(packages=("application code",)), spans) == {
        "app/model.py:1(forward)": 1.0,
        OTHER: 6.0,
    }
    assert functions_of(Rules(packages=("torch",)), spans) == {"torch/ops.py:1(add)": 2.0, OTHER: 5.0}


def test_patterns_include_and_exclude() -> None:
    spans = [span(0, forward=1.0, backward=2.0, torch_add=4.0)]
    rules = Rules(include=("ward", "add"), exclude=(r"\(back",))
    assert functions_of(rules, spans) == {"app/model.py:1(forward)": 1.0, "torch/ops.py:1(add)": 4.0, OTHER: 2.0}


def test_functions_of_one_name_are_one_series_and_one_without_a_name_is_other() -> None:
    rules = Rules(rename=(r"^app/ => ", r"\((?:for|back)ward\) => (pass)", r"^torch/.* => "))
    spans = [span(0, forward=1.0, backward=2.0, torch_add=4.0)]
    assert functions_of(rules, spans) == {"model.py:1(pass)": 3.0, OTHER: 4.0}


def test_pinned_functions_come_first_within_the_budget_and_those_left_out_are_counted() -> None:
    budgets, index = started(limit=2, rules=Rules(pinned=(r"\(p\d\)",)))
    assert take(budgets, index, [span(0, large=9.0, p1=0.1, larger=10.0)]) == {
        "app/model.py:1(p1)": 0.1,
        "app/model.py:1(larger)": 10.0,
        OTHER: 9.0,
    }
    later = take(budgets, index, [span(1, p2=0.2, p3=0.3)])
    assert later == {
        "app/model.py:1(p1)": 0.1,
        "app/model.py:1(larger)": 10.0,
        "app/model.py:1(p3)": 0.0,
        OTHER: pytest.approx(9.5),
    }
    assert budgets.functions.refused[0] >= 1
    assert take(budgets, index, [span(2, p3=1.0, huge=1e6)])["app/model.py:1(p3)"] == 1.0


def test_new_rules_leave_every_series_where_it_stands_and_new_names_begin_at_nothing() -> None:
    budgets, index = started(limit=5)
    take(budgets, index, [span(0, forward=1.0, torch_add=2.0)])
    budgets.functions.rules = Rules(packages=("application code",), rename=("^app/ => ",))
    assert take(budgets, index, []) == {
        "app/model.py:1(forward)": 1.0,
        "torch/ops.py:1(add)": 2.0,
        "model.py:1(forward)": 0.0,
        OTHER: 0.0,
    }
    assert take(budgets, index, [span(1, forward=10.0, torch_add=20.0)]) == {
        "app/model.py:1(forward)": 1.0,
        "torch/ops.py:1(add)": 2.0,
        "model.py:1(forward)": 10.0,
        OTHER: 20.0,
    }
    budgets.functions.rules = Rules()
    take(budgets, index, [])
    assert take(budgets, index, [span(2, forward=100.0, torch_add=200.0)]) == {
        "app/model.py:1(forward)": 101.0,
        "torch/ops.py:1(add)": 202.0,
        "model.py:1(forward)": 10.0,
        OTHER: 20.0,
    }


def test_a_series_that_others_are_merged_into_goes_on_from_where_it_stood() -> None:
    budgets, index = started(limit=5)
    take(budgets, index, [span(0, forward=1.0, backward=2.0)])
    budgets.functions.rules = Rules(rename=("backward => forward",))
    assert take(budgets, index, [])["app/model.py:1(forward)"] == 1.0
    assert take(budgets, index, [span(1, forward=10.0, backward=20.0)]) == {
        "app/model.py:1(forward)": 31.0,
        "app/model.py:1(backward)": 2.0,
        OTHER: 0.0,
    }


def test_a_restart_under_other_rules_goes_on_from_where_the_old_ones_stood() -> None:
    index = Index(Catalog())
    with open_store(None) as store:
        budgets = load_budgets(store, index.catalog, limit=5)
        take(budgets, index, [span(0, forward=1.0, backward=2.0)], store)
        budgets.functions.rules = Rules(rename=("backward => forward",))
        take(budgets, index, [], store)
        take(budgets, index, [span(1, forward=10.0, backward=20.0)], store)
        again = load_budgets(store, index.catalog, limit=5)
        again.functions.rules = Rules(packages=("torch",))
        take(again, index, [], store)
        assert take(again, index, [span(2, forward=100.0)], store) == {
            "app/model.py:1(forward)": 31.0,
            "app/model.py:1(backward)": 2.0,
            OTHER: 100.0,
        }


def test_names_that_rules_have_done_away_with_take_no_room() -> None:
    budgets, index = started(limit=4)
    take(budgets, index, [span(0, **{f"f{number}": 1.0 for number in range(4)})])
    for round_ in range(3):
        budgets.functions.rules = Rules(rename=(f"^app => round_{round_}",))
        names = take(budgets, index, [])
        assert sum(name.startswith(f"round_{round_}/") for name in names) == 4


def test_packages_add_up_to_the_total_whatever_the_rules() -> None:
    budgets, index = started(limit=1, rules=Rules(exclude=("",)))
    take(budgets, index, [span(0, forward=1.0, torch_add=2.0, numpy_dot=4.0)])
    seconds = {name: amount.self_seconds for name, amount in shown(budgets.packages, 0, index.groups[0]).items()}
    assert seconds == {"application code": 1.0, "torch": 2.0, "numpy": 4.0, OTHER: 0.0}


# -- churn -----------------------------------------------------------------------------------------------------------

STEPS, CHOOSE_EVERY, LIMIT, HOT = 10_000, 20, 50, 30


@pytest.mark.parametrize(("functions", "turnover"), [(150, 100), (1_000, 900)])
def test_a_hot_set_that_drifts_through_a_run_makes_fewer_than_two_budgets_of_series(
    functions: int, turnover: int
) -> None:
    sums, budget, ever = Sums(), GroupBudget(limit=LIMIT), set()
    rare: list[Row] = [(label, 1, 1, 1e-6, 1e-6) for label in range(functions)]
    for step in range(0, STEPS, CHOOSE_EVERY):
        first = step * turnover // STEPS
        hot: list[Row] = [(first + place, 20, 20, 0.02, 0.02) for place in range(HOT)]
        add(sums, rare + hot)
        budget = budget.chosen(*sums.all())
        ever |= {*budget.series(*sums.all()).shown, OTHER}
    assert LIMIT < len(ever) < 2 * LIMIT
    assert len(active(budget)) == LIMIT


def test_series_never_reach_two_budgets_and_who_is_kept_out_is_counted() -> None:
    seconds, refused = 1.0, 0
    sums, budget = Sums(), replace(GroupBudget(limit=4))
    for label in range(40):
        seconds *= 2
        add(sums, [(label, 1, 1, seconds, seconds)])
        choice = budget.choice(*sums.all())
        budget, refused = budget.following(*sums.all(), choice), refused + choice.refused
    assert len(budget.shown) + 1 == 2 * 4 - 1
    assert refused > 30
    assert np.isfinite(seconds)
