"""Pages and files of call trees: what the renderers are given is the tree, and hostile names stay names."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from monitor.exports.flame import DEEPEST, to_html, to_speedscope
from tests.exports.test_folded import tree

EVIL = '</script><script>alert("owned")</script><!--'


def data_in(page: str) -> dict[str, Any]:
    """The data that a page holds for its script."""
    found = re.search(r"const sessionData = (\{.*\});\n", page)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_page_holds_the_tree_with_its_seconds() -> None:
    data = data_in(to_html(tree([-1, 0, 1, 0], [0, 1, 2, 2], [0.5, 0.25, 0.125, 1.0]), "a title"))
    assert data["session"]["target_description"] == "a title"
    root = data["frame_tree"]
    assert root["identifier"] == "main\x00/app/train.py\x001"
    assert root["time"] == pytest.approx(1.875)
    children = {child["identifier"].split("\x00")[0]: child["time"] for child in root["children"]}
    assert children["forward"] == pytest.approx(0.375)
    assert children["<built-in method len>"] == pytest.approx(1.0)


def test_names_of_a_hostile_profile_cannot_end_the_script() -> None:
    page = to_html(tree([-1], [0], [1.0], [(EVIL, 1, EVIL)]), EVIL)
    assert page.count("</script>") == 2  # the renderer's own two
    assert "<!--" not in page.split("const sessionData")[1]
    assert data_in(page)["frame_tree"]["identifier"].count("alert") == 2


def test_separators_in_names_do_not_break_frames_apart() -> None:
    page = to_html(tree([-1], [0], [1.0], [("a\x00b", 1, "f\x01g")]), "")
    assert data_in(page)["frame_tree"]["identifier"] == "f?g\x00a?b\x001"


@pytest.mark.parametrize("render", [to_html, to_speedscope])
def test_a_tree_deeper_than_python_recurses_is_cut_and_keeps_its_time(render: Any) -> None:
    depth = 5_000
    parents = [-1, *range(depth - 1)]
    names = [("f.py", line, "f") for line in range(depth)]
    text = render(tree(parents, list(range(depth)), [1.0] * depth, names), "deep")
    if render is to_html:
        frame, levels = data_in(text)["frame_tree"], 1
        assert frame["time"] == pytest.approx(depth)
        while frame["children"]:
            frame, levels = frame["children"][0], levels + 1
        assert levels <= DEEPEST + 1
    else:
        assert json.loads(text)["profiles"][0]["endValue"] == pytest.approx(depth)


@pytest.mark.parametrize("render", [to_html, to_speedscope])
def test_nothing_recorded_is_shown_as_nothing(render: Any) -> None:
    assert render(tree([], [], []), "nothing")


def test_speedscope_opens_and_closes_frames_in_order() -> None:
    document = json.loads(to_speedscope(tree([-1, 0], [0, 1], [0.5, 0.25]), "t"))
    assert [frame["name"] for frame in document["shared"]["frames"]] == ["main", "[self]", "forward"]
    (profile,) = document["profiles"]
    times = [event["at"] for event in profile["events"]]
    assert times == sorted(times)
    assert profile["endValue"] == pytest.approx(0.75)
