"""The families about steps, read from an index of spans with made-up lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from monitor.catalog import SeriesKey
from monitor.index import Index
from monitor.step_metrics import step_families
from tests.test_index import NODE_0, NODE_1, Recorded, index_of

NODE_2 = replace(NODE_0, node="2-host")


def spans(*phases: tuple[str, str, float], node: SeriesKey = NODE_0, at: float = 0.0) -> list[Recorded]:
    """Make spans that follow each other, from ("train-0-stepstart", "train-0-forwardpassend", seconds)."""
    made = []
    for start, end, seconds in phases:
        name = f"{start}-{at * 1e6}_{end}-{(at + seconds) * 1e6}"
        at += seconds
        made.append(Recorded(series=node, name=name))
    return made


def steps(node: SeriesKey, *seconds: float, at: float = 0.0) -> list[Recorded]:
    """Make whole steps of these lengths, with a tenth of a second between them."""
    made: list[Recorded] = []
    for number, length in enumerate(seconds):
        whole = (f"train-{number}-stepstart", f"train-{number}-stepend", length)
        between = (f"train-{number}-stepend", f"train-{number + 1}-stepstart", 0.1)
        made += spans(whole, between, node=node, at=at)
        at += length + 0.1
    return made


def samples(index: Index, family: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return a family's values by some of its labels."""
    (found,) = (each for each in step_families(index, {"training"}) if each.name == family)
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in found.samples}


def spread(*parts: Sequence[Recorded]) -> float | None:
    """Return how far the nodes of one job differ."""
    found = samples(index_of([each for part in parts for each in part]), "phasewatch_step_spread_ratio", "training_job")
    return found.get(("training",))


def test_parts_of_a_step_add_up_to_the_loop_and_steps_are_counted_at_their_start() -> None:
    index = index_of(
        spans(
            ("prestepzero-*-start", "train-0-stepstart", 9.0),
            ("train-0-stepstart", "train-0-forwardpassend", 1.0),
            ("train-0-forwardpassend", "train-0-stepend", 2.0),
            ("train-0-stepend", "train-1-stepstart", 4.0),
            ("train-1-stepstart", "train-1-forwardpassend", 1.0),
            ("train-1-forwardpassend", "eval-0-stepstart", 8.0),
            ("eval-0-stepstart", "eval-0-stepend", 16.0),
            ("eval-0-stepend", "eval-0-stepend", 32.0),
            ("train-2-stepstart", "posthookclose-*-end", 64.0),
        )
    )
    assert samples(index, "phasewatch_step_part_seconds", "mode", "part") == {
        ("train", "forward"): 2.0,
        ("train", "backward"): 2.0,
        ("train", "data_loading"): 4.0,
        ("train", "backward_and_data_loading"): 8.0,
        ("eval", "step"): 16.0,
        ("eval", "mixed"): 32.0,
    }
    assert samples(index, "phasewatch_steps", "mode") == {("train",): 2, ("eval",): 1}


def test_a_mode_of_which_no_step_began_has_a_number_of_steps() -> None:
    index = index_of(spans(("train-0-stepend", "train-1-stepstart", 1.0)))
    assert samples(index, "phasewatch_steps", "mode") == {("train",): 0}


def test_the_slowest_node_is_held_against_the_median() -> None:
    nodes = [steps(NODE_0, 0.9, 0.9), steps(NODE_1, 0.9, 1.1), steps(NODE_2, 2.1, 2.1)]
    assert spread(*nodes) == pytest.approx(2.2 / 1.1)


def test_one_node_has_nobody_to_differ_from() -> None:
    assert spread(steps(NODE_0, 1.0)) is None


def test_a_node_that_has_ended_or_is_long_silent_is_no_straggler() -> None:
    alike = [steps(NODE_0, 0.9, at=1_000.0), steps(NODE_1, 0.9, at=1_000.0)]
    slow = steps(NODE_2, 5.0, at=990.0)
    closed = spans(("train-1-stepstart", "posthookclose-*-end", 1.0), node=NODE_2, at=995.1)
    assert spread(*alike, slow) == pytest.approx(5.1)
    assert spread(*alike, slow, closed) == 1.0
    assert spread(*alike, steps(NODE_2, 5.0, at=100.0)) == 1.0


def test_what_a_node_did_long_ago_is_forgotten() -> None:
    slow_once = steps(NODE_0, *[9.0] * 10, *[0.9] * 200)
    assert spread(slow_once, steps(NODE_1, *[0.9] * 200)) == pytest.approx(1.0)


def test_evaluation_does_not_count_as_slow() -> None:
    evaluation = spans(("eval-0-stepstart", "eval-0-stepend", 50.0), node=NODE_1, at=2.0)
    assert spread(steps(NODE_0, 0.9), [*steps(NODE_1, 0.9), *evaluation]) == 1.0
