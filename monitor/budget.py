"""Which functions of a training phase are series of their own in Prometheus, and what `(other)` holds. Pure.

The rules, so that no scrape ever sees a counter fall:

- A promoted function's series starts from zero (or from where it stood when it was demoted); what it had before stays
  in `(other)`. Only in a phase of which nothing was shown yet do the first functions start with all they have.
- A demoted function's series stays, frozen; what it gains from then on goes to `(other)`.
- At most `limit` series grow, and fewer than `limit` are frozen, so that a phase never has `2 * limit` series with
  `(other)` (of a limit below 3, one may be frozen). When that many are frozen, nobody is demoted any more.
- A preferred function is chosen before all others, and waits for no room among the frozen. One that is kept out is only
  ever part of `(other)`.
- Where functions get other names, all series stand still for a moment: each goes on from where it stood, under the same
  name, and one whose name nothing has any more is frozen. Those take no room.
- `(other)` is the exact sum of its parts, rounded once (`math.fsum`), so it does not depend on how many there are;
  where rounding would make it fall at a demotion, it stays at its floor.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from monitor.profiles.columns import Floats, Ids
from monitor.tables import Measures

OTHER = "(other)"
CLEARLY_BETTER = 1.5
"""A challenger must have this many times the score of the weakest function shown, or membership would flutter."""
CUMULATIVE_WEIGHT = 0.5
CALLS_WEIGHT = 0.1
PREFERRED = 1e3
"""Points that no function has by itself, and too many for a challenger to be clearly better than."""
KEPT_OUT = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """What one series counts."""

    calls: int = 0
    primitive_calls: int = 0
    self_seconds: float = 0.0
    cumulative_seconds: float = 0.0

    def gained(self, total: Amount, base: Amount) -> Amount:
        """Add what `total` has beyond `base`; never falls while `total` grows."""
        return Amount(
            calls=self.calls + (total.calls - base.calls),
            primitive_calls=self.primitive_calls + (total.primitive_calls - base.primitive_calls),
            self_seconds=self.self_seconds + (total.self_seconds - base.self_seconds),
            cumulative_seconds=self.cumulative_seconds + (total.cumulative_seconds - base.cumulative_seconds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One function that has, or had, a series.

    Attributes:
        active: the series grows: by what the function gained since it had `base`. Else it is frozen.
        base: the function's total when it was promoted.
        before: what the series stood at when it was promoted, or stands at while frozen.
    """

    active: bool
    base: Amount = Amount()
    before: Amount = Amount()

    def value(self, total: Amount) -> Amount:
        """Return what the series stands at."""
        return self.before.gained(total, self.base) if self.active else self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Who is to get a series, and who is to lose it.

    Attributes:
        refused: how many functions would have got one, had there been room.
    """

    promoted: Sequence[int] = ()
    demoted: Sequence[int] = ()
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """All series of one phase: by label, and what the rest adds up to."""

    shown: Mapping[int, Amount]
    other: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBudget:
    """The state of one phase. Immutable, so that a new state can be made durable before it is shown.

    Attributes:
        limit: how many series may grow.
        shown: by label. floor: `(other)` never falls below it.
        published: something of this phase has been shown.
    """

    limit: int
    shown: Mapping[int, Shown] = field(default_factory=dict)
    floor: Amount = Amount()
    published: bool = False

    def series(self, labels: Ids, sums: Measures) -> Series:
        """Return all series for the totals of a phase, given by label."""
        totals = totals_of(labels, sums, self.shown)
        shown = {label: state.value(totals[label]) for label, state in self.shown.items()}
        return Series(shown=shown, other=self._other(labels, sums, totals))

    def choice(self, labels: Ids, sums: Measures, preference: Floats | None = None) -> Choice:
        """Compare the functions of a phase.

        Args:
            preference: points to add for each row: PREFERRED, KEPT_OUT or nothing.
        """
        points = score(sums) if preference is None else score(sums) + preference
        scores = {label: own for label, own in zip(labels.tolist(), points.tolist(), strict=True) if own != KEPT_OUT}
        active = {label for label, state in self.shown.items() if state.active}
        ranked = sorted((label for label in scores if label not in active), key=lambda label: (-scores[label], label))
        weakest = sorted(active, key=lambda label: (scores.get(label, 0.0), -label))
        frozen = sum(not state.active and label in scores for label, state in self.shown.items())
        over = len(active) - self.limit
        if over > 0:  # the limit was lowered
            return Choice(demoted=weakest[:over])
        filled = self._fill(scores, ranked, -over, room=self.limit + self.most_frozen - len(active) - frozen)
        if filled.refused:
            return filled
        taken = set(filled.promoted)
        left = [label for label in ranked if label not in taken]
        beaten = self._beat(scores, left, weakest, room=self.most_frozen - frozen)
        return replace(beaten, promoted=[*filled.promoted, *beaten.promoted])

    def chosen(self, labels: Ids, sums: Measures, preference: Floats | None = None) -> GroupBudget:
        """Return the state with the best choice of functions for these totals; this one where nothing changes."""
        return self.following(labels, sums, self.choice(labels, sums, preference))

    def following(self, labels: Ids, sums: Measures, choice: Choice) -> GroupBudget:
        """Return the state after a choice that was made for these totals; this one where nothing changes."""
        if not len(labels) or not (choice.promoted or choice.demoted or not self.published):
            return self
        totals = totals_of(labels, sums, {*self.shown, *choice.promoted})
        shown = dict(self.shown)
        for label in choice.demoted:
            shown[label] = Shown(active=False, before=shown[label].value(totals[label]))
        for label in choice.promoted:
            before = shown[label].before if label in shown else Amount()
            base = totals[label] if self.published else Amount()
            shown[label] = Shown(active=True, base=base, before=before)
        floor = self._other(labels, sums, totals) if self.published else Amount()
        return replace(self, shown=shown, floor=floor, published=True)

    def renamed(self, before: tuple[Ids, Measures], after: tuple[Ids, Measures], kept: Container[int]) -> GroupBudget:
        """Return the state for the same totals under other labels.

        Args:
            before, after: the totals by the labels of then and of now.
            kept: labels of now that may have series that grow.
        """
        if not self.published:
            return self
        then, now = totals_of(*before, self.shown), totals_of(*after, self.shown)
        shown = {
            label: Shown(active=True, base=now[label], before=state.value(then[label]))
            if state.active and label in kept
            else Shown(active=False, before=state.value(then[label]))
            for label, state in self.shown.items()
        }
        return replace(self, shown=shown, floor=self._other(*before, then))

    @property
    def most_frozen(self) -> int:
        """How many series may be frozen."""
        return max(min(self.limit, 1), self.limit - 2)

    def _fill(self, scores: Mapping[int, float], ranked: Sequence[int], places: int, room: int) -> Choice:
        """Promote the best functions, best first, into places that are free."""
        promoted: list[int] = []
        refused = 0
        for label in ranked:
            if len(promoted) + refused >= places:
                break
            if label in self.shown or room > 0 or scores[label] >= PREFERRED:
                room -= label not in self.shown
                promoted.append(label)
            else:
                refused += 1
        return Choice(promoted=promoted, refused=refused)

    def _beat(self, scores: Mapping[int, float], ranked: Sequence[int], weakest: Sequence[int], room: int) -> Choice:
        """Promote those that clearly beat active functions, weakest first."""
        promoted: list[int] = []
        refused = 0
        for challenger in ranked:
            own, preferred = scores[challenger], scores[challenger] >= PREFERRED
            beats = len(promoted) < len(weakest) and own > CLEARLY_BETTER * scores.get(weakest[len(promoted)], 0.0)
            if not beats and not preferred:
                break
            if beats and (challenger in self.shown or room > 0 or preferred):
                room -= challenger not in self.shown
                promoted.append(challenger)
            else:
                refused += 1
        return Choice(promoted=promoted, demoted=weakest[: len(promoted)], refused=refused)

    def _other(self, labels: Ids, sums: Measures, totals: Mapping[int, Amount]) -> Amount:
        """Add up what no series shows: functions never shown, bases of active ones, what frozen ones gained since."""
        kept = ~np.isin(labels, np.asarray(list(self.shown), dtype=np.int32))
        parts = [(state.base if state.active else totals[label], state.before) for label, state in self.shown.items()]

        def whole(name: str) -> int:
            rest = int(getattr(sums, name)[kept].sum())
            return rest + sum(int(getattr(plus, name)) - int(getattr(minus, name)) for plus, minus in parts)

        def seconds(name: str) -> float:
            plus = [getattr(part, name) for part, _ in parts]
            minus = [-getattr(part, name) for _, part in parts]
            exact = math.fsum([*getattr(sums, name)[kept].tolist(), *plus, *minus])
            floor: float = getattr(self.floor, name)
            return max(exact, floor)

        return Amount(
            calls=whole("calls"),
            primitive_calls=whole("primitive_calls"),
            self_seconds=seconds("self_seconds"),
            cumulative_seconds=seconds("cumulative_seconds"),
        )


def totals_of(labels: Ids, sums: Measures, wanted: Iterable[int]) -> dict[int, Amount]:
    """Return the totals of some labels; a label without rows has nothing."""
    wanted = np.asarray(sorted(wanted), dtype=np.int32)
    rows = np.flatnonzero(np.isin(labels, wanted))
    picked = sums.take(rows)
    found = {
        label: Amount(calls=calls, primitive_calls=primitive, self_seconds=own, cumulative_seconds=cumulative)
        for label, calls, primitive, own, cumulative in zip(
            labels[rows].tolist(),
            picked.calls.tolist(),
            picked.primitive_calls.tolist(),
            picked.self_seconds.tolist(),
            picked.cumulative_seconds.tolist(),
            strict=True,
        )
    }
    return {label: found.get(label, Amount()) for label in wanted.tolist()}


def score(sums: Measures) -> Floats:
    """Weigh functions: self time counts most; cumulative time matters, so that `forward` and `backward` show."""
    own, cumulative, calls = sums.self_seconds, sums.cumulative_seconds, sums.calls
    points = own / max(float(own.sum()), 1e-12)
    points = points + CUMULATIVE_WEIGHT * cumulative / max(float(cumulative.max(initial=0.0)), 1e-12) / len(own)
    return np.asarray(points + CALLS_WEIGHT * calls / max(int(calls.sum()), 1), dtype=np.float64)
