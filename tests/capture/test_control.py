"""Requests while training runs: followed, answered, and refused where they are stale, malformed or somebody else's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from monitor.capture import Capture
from monitor.triggers import Wish, find_base, read_answers, write_request
from tests.capture.capture_on_disk import EVAL, TRAIN, Open, calls, shape, spans, wait_until, work

IN_2100 = 4_102_444_800.0


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    return folder


def train(capture: Capture, first: int, last: int) -> None:
    for step in range(first, last):
        with capture.step(TRAIN, step):
            work(step + 1)


def steps_profiled(folder: Path) -> list[int | None]:
    return [span.start.step for span in spans(folder) if shape(span).endswith("stepend")]


def answer_of(capture: Capture, base: Path) -> dict[str, object]:
    """The newest answer of the one node."""
    path = base / f"phasewatch-answer-{capture.node}.json"
    wait_until(path.exists)
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_the_next_steps_are_profiled_and_no_more(open_capture: Open, base: Path) -> None:
    capture = open_capture(every=0)
    train(capture, 0, 3)
    assert capture.statistics().written == 0
    name = write_request(base, Wish(steps=2))
    train(capture, 3, 8)
    capture.finish()
    assert steps_profiled(capture.node_folder) == [3, 4]
    inside = [span for span in spans(capture.node_folder) if shape(span).endswith("stepend")]
    assert [calls(capture.node_folder, span, "unit") for span in inside] == [4, 5]
    (answer,) = read_answers(base, name)
    assert (answer["state"], answer["before_step"], answer["node"]) == ("done", 5, "0-test")


def test_a_request_is_taken_once_and_another_one_again(open_capture: Open, base: Path) -> None:
    capture = open_capture(every=0)
    write_request(base, Wish(steps=1))
    train(capture, 0, 4)
    request = base / "phasewatch-trigger.json"
    os.utime(request)
    train(capture, 4, 8)
    write_request(base, Wish(steps=1))
    train(capture, 8, 12)
    capture.finish()
    assert steps_profiled(capture.node_folder) == [0, 8]


def test_a_request_adds_to_the_schedule(open_capture: Open, base: Path) -> None:
    capture = open_capture(every=4)
    write_request(base, Wish(steps=2))
    train(capture, 1, 10)
    capture.finish()
    assert steps_profiled(capture.node_folder) == [1, 2, 4, 8]


def test_modes_and_profiler_may_be_asked_for(open_capture: Open, base: Path) -> None:
    capture = open_capture(every=0)
    write_request(base, Wish(steps=2, modes=("eval",), profiler="pyinstrument"))
    for step in range(4):
        train(capture, step, step + 1)
        with capture.step(EVAL, step):
            work(10)
    capture.finish()
    assert not capture.node_folder.exists()
    folder = base / "framework/pytorch/pyinstrument/0-test"
    inside = [shape(span) for span in spans(folder) if shape(span).endswith("stepend")]
    assert inside == ["eval-0-stepstart_eval-0-stepend", "eval-1-stepstart_eval-1-stepend"]
    facts = json.loads((folder / spans(folder)[0].name / "phasewatch.json").read_text())
    assert facts["profiler"] == "pyinstrument"
    assert facts["trigger"] is not None


def test_other_nodes_requests_are_left_alone(open_capture: Open, base: Path) -> None:
    capture = open_capture(every=0)
    write_request(base, Wish(steps=1, nodes=("7-other",)))
    train(capture, 0, 2)
    write_request(base, Wish(steps=1, nodes=("7-other", "0-test")))
    train(capture, 2, 4)
    capture.finish()
    assert steps_profiled(capture.node_folder) == [2]


def test_a_request_from_before_the_start_is_stale(open_capture: Open, base: Path) -> None:
    write_request(base, Wish(steps=1))
    capture = open_capture(every=0)
    train(capture, 0, 2)
    capture.finish()
    assert capture.statistics().written == 0


def valid(**fields: object) -> dict[str, object]:
    return {"id": "x", "steps": 1, "expires": IN_2100, **fields}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it cannot be read"),
        (b"{", "it cannot be read"),
        (b"\xff\xfe", "it cannot be read"),
        (b"[" * 4000, "it cannot be read"),
        (b"[]", "it is no JSON object"),
        (b" " * 5000, "it is no plain file of at most 4096 bytes"),
        (json.dumps(valid(expires=1.7e9)).encode(), "it has expired"),
        (json.dumps(valid(expires="soon")).encode(), "it has expired"),
        (json.dumps(valid(steps=0)).encode(), "steps is no whole number from 1"),
        (json.dumps(valid(steps=True)).encode(), "steps is no whole number from 1"),
        (json.dumps(valid(steps=10**9)).encode(), "steps is no whole number from 1"),
        (json.dumps(valid(id="y" * 65)).encode(), "its id is no text of 1 to 64 characters"),
        (json.dumps(valid(id=5)).encode(), "its id is no text of 1 to 64 characters"),
        (json.dumps(valid(nodes="0-test")).encode(), "nodes is no list of names"),
        (json.dumps(valid(profiler="perf")).encode(), "profiler is none of cprofile, pyinstrument"),
        (json.dumps(valid(modes=["walk"])).encode(), "modes are not some of train"),
        (json.dumps(valid(modes=[{}])).encode(), "modes are not some of train"),
    ],
)
def test_what_is_no_request_is_refused_and_training_goes_on(
    open_capture: Open, base: Path, content: bytes, reason: str
) -> None:
    capture = open_capture(every=0)
    path = base / "phasewatch-trigger.json"
    path.write_bytes(content)
    path.chmod(0o644)
    train(capture, 0, 3)
    answer = answer_of(capture, base)
    assert answer["state"] == "refused"
    assert str(answer["reason"]).startswith(reason)
    capture.finish()
    assert capture.statistics().written == 0


def test_a_request_that_others_may_write_to_is_refused(open_capture: Open, base: Path) -> None:
    capture = open_capture(every=0)
    write_request(base, Wish(steps=1))
    (base / "phasewatch-trigger.json").chmod(0o666)
    train(capture, 0, 3)
    assert answer_of(capture, base)["reason"] == "others than its owner may write to it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_request_of_another_user_is_refused(open_capture: Open, base: Path) -> None:
    capture = open_capture(every=0)
    write_request(base, Wish(steps=1))
    os.chown(base / "phasewatch-trigger.json", 65534, 65534)
    train(capture, 0, 3)
    assert answer_of(capture, base)["reason"] == "it belongs to somebody who does not own the base folder"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask on behalf of the owner")
def test_root_asks_on_behalf_of_the_owner(open_capture: Open, base: Path) -> None:
    os.chown(base, 65534, 65534)
    capture = open_capture(every=0)
    write_request(base, Wish(steps=1))
    assert (base / "phasewatch-trigger.json").stat().st_uid == 65534
    train(capture, 0, 2)
    capture.finish()
    assert steps_profiled(capture.node_folder) == [0]


@pytest.mark.parametrize("make", ["link", "folder", "pipe"])
def test_what_is_no_plain_file_is_refused(open_capture: Open, base: Path, tmp_path: Path, make: str) -> None:
    capture = open_capture(every=0)
    path = base / "phasewatch-trigger.json"
    if make == "link":
        (tmp_path / "elsewhere").write_text(json.dumps(valid()))
        path.symlink_to(tmp_path / "elsewhere")
    elif make == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    train(capture, 0, 3)
    assert answer_of(capture, base)["state"] == "refused"
    capture.finish()
    assert capture.statistics().written == 0


def test_a_capture_without_triggers_looks_at_nothing(open_capture: Open, base: Path) -> None:
    capture = open_capture(every=0, triggers=False)
    write_request(base, Wish(steps=1))
    train(capture, 0, 3)
    capture.finish()
    assert capture.statistics().written == 0


def test_the_base_is_found_from_above_and_below(base: Path, tmp_path: Path) -> None:
    node = base / "framework" / "pytorch" / "cprofile" / "0-a"
    node.mkdir(parents=True)
    assert find_base(node) == find_base(base) == find_base(tmp_path) == base


def test_an_answer_is_not_written_through_a_link_that_somebody_left(
    open_capture: Open, base: Path, tmp_path: Path
) -> None:
    capture = open_capture(every=0)
    (tmp_path / "precious").write_text("as it was")
    beside = base / f".phasewatch-answer-{capture.node}.json.{os.getpid()}"
    beside.symlink_to(tmp_path / "precious")
    write_request(base, Wish(steps=1))
    (base / "phasewatch-trigger.json").chmod(0o666)
    train(capture, 0, 3)
    assert answer_of(capture, base)["state"] == "refused"
    assert (tmp_path / "precious").read_text() == "as it was"


@pytest.mark.parametrize("make", ["link", "pipe"])
def test_an_answer_that_is_no_plain_file_in_the_folder_is_passed_over(base: Path, tmp_path: Path, make: str) -> None:
    path = base / "phasewatch-answer-0-a.json"
    if make == "link":
        (tmp_path / "elsewhere").write_text(json.dumps({"id": "x"}))
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    assert read_answers(base, "x") == []
