"""Paths: which file of which span they are, in both layouts, and what is said of one that is neither."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import LayoutError
from monitor.layout import FileKind, SpanKey, data_file, format_path, is_span_folder, locate
from monitor.spans import Moment, PythonProfileModes, StepPhase, format_span_name, parse_legacy_name, parse_span_name

SPAN = "train-10-stepstart-1796116656916859.8_train-10-forwardpassend-1796116656919192.8"
LEGACY = "1796116656916859.8_1796116656919192.8_0-algo-1_10"
NODE = "base/framework/pytorch/cprofile/0-algo-1"
WORDS = st.text(st.characters(exclude_characters="/", exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda word: word not in (".", "..") and word.isprintable()
)
MOMENTS = st.builds(
    Moment,
    mode=st.sampled_from(PythonProfileModes),
    step=st.none() | st.integers(0, 2**63 - 2),
    phase=st.sampled_from(StepPhase),
    time_us=st.floats(0, 2.0**62, allow_nan=False),
)


def refusal(path: str) -> str:
    """Return why a path is refused."""
    with pytest.raises(LayoutError) as caught:
        locate(path)
    return caught.value.reason


@given(st.sampled_from(["", "/", "base", "/a/b", "s3-prefix/x"]), WORDS, WORDS, MOMENTS, MOMENTS, st.booleans())
def test_a_path_that_was_written_comes_back_exactly(
    base: str, framework: str, node: str, start: Moment, end: Moment, sampled: bool
) -> None:
    profiler = "pyinstrument" if sampled else "cprofile"
    key = SpanKey(framework=framework, profiler=profiler, node=node, span=format_span_name(start, end))
    path = format_path(base, key)
    found = locate(path)
    assert (found.key, found.path) == (key, path)
    assert (found.span.start, found.span.end) == (start, end)
    assert format_path(base, found.key) == path


def test_a_path_of_the_layout_is_taken_apart() -> None:
    found = locate(f"/{NODE}/{SPAN}/python_stats")
    assert found.key == SpanKey(framework="pytorch", profiler="cprofile", node="0-algo-1", span=SPAN)
    assert found.kind is FileKind.STATS
    assert found.span == parse_span_name(SPAN)


def test_in_the_older_layout_the_node_stands_in_the_folder_name() -> None:
    path = f"base/framework/tensorflow/cProfile/{LEGACY}/python_stats"
    found = locate(path)
    assert found.key == SpanKey(framework="tensorflow", profiler="cprofile", node="0-algo-1", span=LEGACY)
    assert (found.span, found.path) == (parse_legacy_name(LEGACY)[0], path)


@pytest.mark.parametrize(
    ("file", "kind", "profiler"),
    [
        ("python_stats", FileKind.STATS, "cprofile"),
        ("python_stats.json", FileKind.JSON, "pyinstrument"),
        ("python_stats.html", FileKind.HTML, "pyinstrument"),
    ],
)
@pytest.mark.parametrize("folder", ["cprofile", "pyinstrument", "cProfile"])
def test_the_name_of_the_file_tells_the_profiler_and_not_the_folder(
    folder: str, file: str, kind: FileKind, profiler: str
) -> None:
    found = locate(f"framework/pytorch/{folder}/0-a/{SPAN}/{file}")
    assert (found.kind, found.key.profiler) == (kind, profiler)


def test_only_the_last_components_count() -> None:
    short = locate(f"pytorch/cprofile/0-a/{SPAN}/python_stats")
    long = locate(f"/mnt/../a//b/framework/pytorch/cprofile/0-a/{SPAN}/python_stats")
    assert short.key == long.key


def test_each_profiler_has_its_data_file() -> None:
    assert (data_file("cprofile"), data_file("pyinstrument")) == ("python_stats", "python_stats.json")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "file name '' is none of python_stats, python_stats.json, python_stats.html"),
        (f"{NODE}/{SPAN}/", "file name '' is none of python_stats, "),
        (f"{NODE}/{SPAN}/python_stats.tmp", "file name 'python_stats.tmp' is none of python_stats, "),
        (f"{NODE}/{SPAN}/PYTHON_STATS", "file name 'PYTHON_STATS' is none of python_stats, "),
        ("python_stats", "span name '' does not have the form START_END"),
        (f"{NODE}/tmp/python_stats", "span name 'tmp' does not have the form START_END"),
        (f"{NODE}/{SPAN[:-3]}x/python_stats", "time '179611665691919x' in the end of span "),
        (f"{NODE}/1_2_node/python_stats", "folder name '1_2_node' is not START_END_NODE_STEP of the older layout"),
        (f"{SPAN}/python_stats", f"path '{SPAN}/python_stats' is too short: …/FRAMEWORK/PROFILER/NODE/SPAN/FILE"),
        (f"cprofile/0-a/{SPAN}/python_stats", "path 'cprofile/0-a/train-10-"),
        (f"cProfile/{LEGACY}/python_stats", f"path 'cProfile/{LEGACY}/python_stats' is too short: …/FRAMEWORK/"),
        (f"/cprofile/0-a/{SPAN}/python_stats", "the framework in path "),
        (f"a/../cprofile/0-a/{SPAN}/python_stats", "the framework in path "),
        (f"a/x\ny/cprofile/0-a/{SPAN}/python_stats", "the framework in path "),
        (f"a/pytorch//0-a/{SPAN}/python_stats", "the profiler in path "),
        (f"a/pytorch/./0-a/{SPAN}/python_stats", "the profiler in path "),
        (f"a/pytorch/cprofile//{SPAN}/python_stats", "the node in path "),
        (f"a/pytorch/cprofile/../{SPAN}/python_stats", "the node in path "),
        (f"a/pytorch/cprofile/\udc80/{SPAN}/python_stats", "the node in path "),
        ("a/pytorch/cProfile/1_2_\x00_3/python_stats", "the node in path "),
        ("a/pytorch/cProfile/1_2_.._3/python_stats", "the node in path "),
    ],
)
def test_a_refusal_names_the_component_that_is_wrong(path: str, said: str) -> None:
    assert refusal(path).startswith(said)


def test_a_refused_component_is_shown() -> None:
    assert refusal("a/pytorch/cProfile/1_2_x\ty_3/python_stats") == (
        r"the node in path 'a/pytorch/cProfile/1_2_x\ty_3/python_stats' is 'x\ty', which is no name"
    )


@pytest.mark.parametrize(
    "path",
    [
        "x" * 10_000,
        f"{'x/' * 5_000}{'y' * 10_000}/python_stats",
        f"a/{'n' * 10_000}\n/cprofile/0-a/{SPAN}/python_stats",
    ],
)
def test_a_path_of_ten_thousand_characters_is_refused_in_a_short_sentence(path: str) -> None:
    assert len(refusal(path)) < 500


def test_names_of_ten_thousand_characters_are_read_where_they_are_well_formed() -> None:
    node = "n" * 10_000
    assert locate(f"a/pytorch/cprofile/{node}/{SPAN}/python_stats").key.node == node


@pytest.mark.parametrize(
    ("name", "told"),
    [(SPAN, True), (LEGACY, True), ("", False), ("0-algo-1", False), ("²_1_n_2", False), (f"{SPAN}~", False)],
)
def test_span_folders_of_both_layouts_are_told_from_others(name: str, told: bool) -> None:
    assert is_span_folder(name) is told
