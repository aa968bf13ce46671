"""Gates, folders and links, on real directories; the time is passed in."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from monitor.errors import ReadError
from monitor.reading import LocalFile, read_file
from monitor.sources.base import FileRef
from monitor.sources.walk import TRUST_SECONDS, Walker
from tests.sources.conformance import NODE, freeze, put_span, span_name

NOBODY = 65534


def scan(walker: Walker, now: float, *, watched: bool = False, everything: bool = False) -> list[FileRef]:
    return [ref for refs in walker.scan(now, watched=watched, everything=everything) for ref in refs]


def steps(refs: list[FileRef]) -> list[int]:
    return sorted(ref.span.start_step for ref in refs)


def test_a_file_made_in_the_same_tick_as_a_listing_is_found(tmp_path: Path) -> None:
    node = tmp_path / NODE
    put_span(node, 1)
    freeze(node, 10**9)
    walker = Walker(tmp_path)
    assert steps(scan(walker, 0.0)) == [1]
    put_span(node, 2)
    freeze(node, 10**9)
    assert steps(scan(walker, 1.0)) == [2]
    put_span(node, 3)
    freeze(node, 10**9)
    assert steps(scan(walker, TRUST_SECONDS)) == [3]


def test_a_settled_folder_is_not_listed_until_its_time_changes(tmp_path: Path) -> None:
    node = tmp_path / NODE
    put_span(node, 1)
    freeze(node, 10**9)
    walker = Walker(tmp_path)
    scan(walker, 0.0)
    scan(walker, 10.0)
    settled = walker.listings
    for later in range(50):
        assert scan(walker, 20.0 + later) == []
    assert walker.listings == settled
    put_span(node, 2)
    freeze(node, 10**9 + 1)
    assert steps(scan(walker, 100.0)) == [2]
    assert walker.listings == settled + 1


WALL = 1_800_000_000


@pytest.mark.parametrize(
    ("local", "age", "trusted"),
    [
        (True, 0.2, True),
        (True, 0.05, False),
        (True, 1.0, False),
        (False, 30.5, False),
        (False, 60.5, True),
        (True, 61, True),
    ],
)
def test_an_old_gate_is_trusted_at_once(
    local: bool, age: float, trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.sources.walk.keeps_local_time", lambda device: local)
    node = tmp_path / NODE
    put_span(node, 1)
    for folder in (tmp_path, *node.relative_to(tmp_path).parents, node):
        path = tmp_path / folder
        os.utime(path, ns=(0, int((WALL - age) * 1e9)))
    walker = Walker(tmp_path)
    list(walker.scan(0.0, wall=WALL))
    walker.folders()
    assert walker.holds() is trusted


def test_gates_hold_until_something_could_be_new(tmp_path: Path) -> None:
    """Each way in which something new can come opens them."""
    base, other = tmp_path / "base", tmp_path / "other"
    for place in (base, other):
        put_span(place / NODE, 1)
    link = tmp_path / "link"
    link.symlink_to(base)
    walker = Walker(link)
    assert not walker.holds()

    times = count(start=0, step=100)

    def settle() -> None:
        wall = (base / NODE).stat().st_mtime + 3600
        list(walker.scan(next(times), wall=wall))
        list(walker.scan(next(times), wall=wall))
        walker.folders()
        assert walker.holds()

    settle()
    put_span(base / NODE, 2)
    assert not walker.holds()
    settle()
    put_span((base / NODE).with_name("9-new"), 1)
    assert not walker.holds()
    settle()
    shutil.rmtree((base / NODE).with_name("9-new"))
    assert not walker.holds()
    settle()
    link.unlink()
    assert not walker.holds()
    link.symlink_to(other)
    assert not walker.holds()
    settle()
    walker.distrust()
    assert not walker.holds()


def test_gates_hold_beside_a_link_that_is_walked_elsewhere_or_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    put_span(base / NODE, 1)
    (base / NODE).with_name("latest").symlink_to(base / NODE)
    (base / "out").symlink_to(tmp_path)
    walker = Walker(base)
    wall = (base / NODE).stat().st_mtime + 3600
    for now in (0.0, 100.0):
        list(walker.scan(now, wall=wall))
    walker.folders()
    assert walker.holds()
    put_span(base / NODE, 2)
    assert not walker.holds()


def test_a_full_scan_finds_what_a_gate_missed(tmp_path: Path) -> None:
    node = tmp_path / NODE
    put_span(node, 1)
    freeze(node, 10**9)
    walker = Walker(tmp_path)
    scan(walker, 0.0)
    scan(walker, 10.0)
    put_span(node, 2)
    freeze(node, 10**9)
    assert scan(walker, 20.0) == []
    walker.distrust()
    assert steps(scan(walker, 30.0)) == [2]


def test_a_busy_folder_is_listed_rarely_unless_everything_is_asked_for(tmp_path: Path) -> None:
    node = tmp_path / NODE
    put_span(node, 1)
    walker = Walker(tmp_path)
    scan(walker, 0.0)
    folder = next(folder for folder in walker.folders() if folder.path == str(node))
    folder.listing_seconds = 1.0  # as if it were huge
    put_span(node, 2)
    assert scan(walker, 4.9) == []
    assert scan(walker, 50.0, watched=True) == []
    assert steps(scan(walker, 4.9, everything=True)) == [2]
    put_span(node, 3)
    folder.listing_seconds = 1.0
    assert steps(scan(walker, 9.91)) == [3]


def test_folders_that_appear_later_are_found_at_each_level(tmp_path: Path) -> None:
    base = tmp_path / "not" / "yet"
    walker = Walker(base)
    assert scan(walker, 0.0) == []
    assert not walker.available
    folder = base
    for now, part in enumerate(("", "framework", "pytorch", "cprofile", "0-a"), start=1):
        folder = folder / part
        folder.mkdir(parents=True)
        assert scan(walker, float(now)) == []
        assert walker.available
    put_span(folder, 1)
    put_span(base / "framework/tensorflow/pyinstrument/1-b", 2, file="python_stats.json")
    found = scan(walker, 10.0)
    assert [ref.key[:3] for ref in sorted(found, key=lambda ref: ref.span.start_step)] == [
        ("pytorch", "cprofile", "0-a"),
        ("tensorflow", "pyinstrument", "1-b"),
    ]
    assert {Path(ref.path).name for ref in found} == {"python_stats", "python_stats.json"}


def test_a_folder_that_went_and_came_back_is_named_again(tmp_path: Path) -> None:
    node = tmp_path / NODE
    put_span(node, 1)
    walker = Walker(tmp_path)
    assert steps(scan(walker, 0.0)) == [1]
    shutil.rmtree(node)
    assert scan(walker, 1.0) == []
    put_span(node, 1)
    assert steps(scan(walker, 2.0)) == [1]


@pytest.mark.parametrize("below", ["framework", "framework/pytorch", "framework/pytorch/cprofile", NODE])
def test_a_root_below_the_base_takes_the_places_from_its_own_path(below: str, tmp_path: Path) -> None:
    put_span(tmp_path / NODE, 1)
    (found,) = scan(Walker(tmp_path / below), 0.0)
    assert found.key == ("pytorch", "cprofile", "0-a", span_name(1))


def test_the_older_layout_is_read(tmp_path: Path) -> None:
    (tmp_path / "framework/pytorch/cProfile/1000.5_1001.5_0-a_7").mkdir(parents=True)
    (found,) = scan(Walker(tmp_path), 0.0)
    assert (found.key.framework, found.key.profiler, found.key.node) == ("pytorch", "cprofile", "0-a")
    assert found.span.start_step == 7


def test_a_span_below_an_unknown_profiler_is_known_by_its_file(tmp_path: Path) -> None:
    put_span(tmp_path / "framework/pytorch/other/0-a", 1, file="python_stats.json")
    (found,) = scan(Walker(tmp_path), 0.0)
    assert found.key.profiler == "pyinstrument"


def test_strange_names_are_ignored_and_counted_once(tmp_path: Path) -> None:
    node = tmp_path / NODE
    put_span(node, 1)
    (node / "notes.txt").write_text("no profile")
    put_span(node / ".hidden", 2)
    (node / "train-1-nophase-1.0_train-1-stepend-2.0").mkdir()
    (node / os.fsdecode(b"\xff\xfe")).mkdir()
    (node / (span_name(3) + os.fsdecode(b"\xff"))).mkdir()
    walker = Walker(tmp_path)
    assert steps(scan(walker, 0.0)) == [1]
    assert walker.ignored_names == 4
    walker.distrust()
    assert scan(walker, 1.0) == []
    assert walker.ignored_names == 4


def test_folders_are_walked_eight_levels_deep(tmp_path: Path) -> None:
    put_span(tmp_path.joinpath(*"12345678"), 1, file="python_stats")
    put_span(tmp_path.joinpath(*"123456789"), 2, file="python_stats")
    assert steps(scan(Walker(tmp_path), 0.0)) == [1]


def test_a_link_that_leaves_the_root_is_refused_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("phasewatch"), "propagate", True)
    base, outside = tmp_path / "base", tmp_path / "outside"
    put_span(outside, 1)
    put_span(base / NODE, 2)
    (base / NODE / span_name(1)).symlink_to(outside / span_name(1))
    (base / "framework/pytorch/cprofile/1-b").symlink_to(outside)
    walker = Walker(base)
    for now in (0.0, 1.0):
        assert steps(scan(walker, now)) == ([2] if now == 0.0 else [])
        walker.distrust()
    assert walker.refused_links == 2
    assert len([record for record in caplog.records if "refused the link" in record.getMessage()]) == 2


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    put_span(tmp_path / ".kept/0-a", 1)
    (tmp_path / "framework/pytorch/cprofile").mkdir(parents=True)
    (tmp_path / NODE).symlink_to(tmp_path / ".kept/0-a")
    assert [ref.key.node for ref in scan(Walker(tmp_path), 0.0)] == ["0-a"]


def test_a_link_to_a_folder_above_itself_is_refused(tmp_path: Path) -> None:
    put_span(tmp_path / NODE, 1)
    (tmp_path / "framework" / "again").symlink_to(tmp_path / "framework")
    walker = Walker(tmp_path)
    assert steps(scan(walker, 0.0)) == [1]
    assert walker.refused_links == 1


def test_a_root_that_is_a_link_is_followed_where_it_is_switched_to(tmp_path: Path) -> None:
    put_span(tmp_path / "run1" / NODE, 1)
    put_span(tmp_path / "run2" / NODE, 2)
    current = tmp_path / "current"
    current.symlink_to("run1")
    walker = Walker(current)
    assert steps(scan(walker, 0.0)) == [1]
    current.unlink()
    current.symlink_to("run2")
    assert steps(scan(walker, 1.0)) == [2]


UNREADABLE = """
import os, sys
from pathlib import Path
from monitor.sources.walk import Walker
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
walker = Walker(Path(sys.argv[1]))
found = [ref.key.node for now in (0.0, 1.0) for refs in walker.scan(now) for ref in refs]
print(found, walker.unreadable_folders > 0)
"""


def test_an_unreadable_folder_is_counted_and_the_rest_goes_on(short_tmp_path: Path) -> None:
    short_tmp_path.chmod(0o755)
    base = short_tmp_path / "base"
    put_span(base / NODE, 1)
    closed = base / "framework/pytorch/cprofile/1-b"
    put_span(closed, 2)
    closed.chmod(0)
    try:
        command = [sys.executable, "-c", UNREADABLE, str(base), str(NOBODY)]
        child = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, cwd=Path.cwd())
    finally:
        closed.chmod(0o755)
    assert child.stdout == "['0-a'] True\n", child.stderr


def test_an_event_names_a_span_at_once_and_only_once(tmp_path: Path) -> None:
    node = tmp_path / NODE
    node.mkdir(parents=True)
    walker = Walker(tmp_path)
    scan(walker, 0.0)
    walker.folders()
    path = put_span(node, 1).parent
    assert steps(walker.take_event(str(path))) == [1]
    assert walker.take_event(str(path)) == []
    assert walker.take_event(str(node / span_name(2))) == []
    assert scan(walker, 1.0) == []


def test_an_event_for_a_link_is_left_to_the_listing(tmp_path: Path) -> None:
    base, outside = tmp_path / "base", tmp_path / "outside"
    (base / NODE).mkdir(parents=True)
    put_span(outside, 1)
    walker = Walker(base)
    scan(walker, 0.0)
    walker.folders()
    link = base / NODE / span_name(1)
    link.symlink_to(outside / span_name(1))
    assert walker.take_event(str(link)) == []
    assert scan(walker, 1.0) == []
    assert walker.refused_links == 1


def test_links_in_a_circle_name_each_span_once(tmp_path: Path) -> None:
    base = tmp_path / "framework/pytorch"
    put_span(base / "a/0-a", 1)
    for one in "abc":
        for other in "abc".replace(one, ""):
            (base / one).mkdir(exist_ok=True)
            (base / one / f"to-{other}").symlink_to(base / other)
    walker = Walker(tmp_path)
    assert [ref.key.node for ref in scan(walker, 0.0)] == ["0-a"]
    assert scan(walker, 10.0, everything=True) == []
    assert len(walker.folders()) < 20


def test_a_link_beside_its_node_does_not_count_it_twice(tmp_path: Path) -> None:
    put_span(tmp_path / NODE, 1)
    (tmp_path / "framework/pytorch/cprofile/latest").symlink_to("0-a")
    assert [ref.key.node for ref in scan(Walker(tmp_path), 0.0)] == ["0-a"]


def test_a_folder_replaced_by_a_link_that_leads_out_is_neither_walked_nor_read(tmp_path: Path) -> None:
    base, outside = tmp_path / "base", tmp_path / "outside"
    put_span(base / NODE, 1)
    put_span(outside, 2, b"secret")
    walker = Walker(base)
    (first,) = scan(walker, 0.0)
    shutil.rmtree(base / NODE)
    (base / NODE).symlink_to(outside)
    for now in (1.0, 2.0):
        assert scan(walker, now, everything=True) == []
    assert walker.refused_links == 1
    aimed = first.path.replace(span_name(1), span_name(2))
    with pytest.raises(ReadError) as caught:
        read_file(LocalFile(aimed, walker.root_path), 100)
    assert caught.value.kind == "refused"


def test_a_span_whose_profiler_only_its_file_tells_is_looked_at_again(tmp_path: Path) -> None:
    node = tmp_path / "framework/pytorch/other/0-a"
    path = put_span(node, 1, None)
    freeze(node, 10**9)
    walker = Walker(tmp_path)
    for now in (0.0, 5.0, 10.0):
        assert scan(walker, now) == []
    path.write_bytes(b"x")
    assert steps(scan(walker, 45.0)) == [1]
