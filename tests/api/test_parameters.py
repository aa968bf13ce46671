"""Parameters: texts of a URL to typed questions, and every refusal with what is allowed instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from monitor.answers import Scope
from monitor.api import parameters as p
from monitor.errors import QueryError
from monitor.selection import BetweenModes, ByStep, ByStepDocumented, ByTime, PostHookClose, PreStepZero, Question
from monitor.spans import LARGEST_STEP, PythonProfileModes, StepPhase

TRAIN, EVAL = PythonProfileModes.TRAIN, PythonProfileModes.EVAL
Pairs = Sequence[tuple[str, str]]
LISTED = (*p.SCOPE, *p.TABLE)

ALL_MODES = "train, eval, predict, global, prestepzero, posthookclose"
ALL_PHASES = "start, stepstart, forwardpassend, stepend, end"

GOOD: list[tuple[Callable[[str], object], str, object]] = [
    (p.step, "0", 0),
    (p.step, "007", 7),
    (p.step, str(LARGEST_STEP), LARGEST_STEP),
    (p.seconds, "1796116656.25", 1796116656.25),
    (p.seconds, "-1", -1.0),
    (p.seconds, "1e9", 1e9),
    (p.mode, "train", TRAIN),
    (p.mode, "posthookclose", PythonProfileModes.POST_HOOK_CLOSE),
    (p.phase, "forwardpassend", StepPhase.FORWARD_PASS_END),
    (p.switch, "true", True),
    (p.switch, "1", True),
    (p.switch, "false", False),
    (p.switch, "0", False),
    (p.name, "0-algo-1", "0-algo-1"),
    (p.name, "é 漢", "é 漢"),
    (p.output_format, "folded", "folded"),
    (p.output_format, "html", "html"),
    (p.table_format, "tree", "tree"),
    (p.table_format, "pstats", "pstats"),
    (p.whole(0, 9), "9", 9),
]

BAD: list[tuple[Callable[[str], object], str, str]] = [
    *((p.step, text, f"must be a step: digits, at most {LARGEST_STEP}") for text in ("", "x", "-1", "1.0", "*", " 1")),
    *((p.step, text, "must be a step") for text in ("+1", "1_0", "٣", "²", str(LARGEST_STEP + 1), "9" * 5000)),
    *((p.seconds, text, "must be a time in seconds since the epoch") for text in ("", "x", "nan", "inf", "-inf")),
    *((p.seconds, text, "must be a time in seconds since the epoch") for text in ("1e400", "0x1", "2026-01-01")),
    *((p.mode, text, f"must be one of {ALL_MODES}") for text in ("", "TRAIN", "1", "trian")),
    *((p.phase, text, f"must be one of {ALL_PHASES}") for text in ("", "STEP_START", "step_start")),
    *((p.switch, text, "must be true or false") for text in ("", "yes", "True", "2")),
    (p.name, "", "must not be empty"),
    (p.output_format, "xml", "must be one of json, csv, pstats, profiles, tree, folded, speedscope, html"),
    (p.table_format, "folded", "holds no phases: use json, csv, pstats, tree, or stats/modes"),
    (p.table_format, "xml", "must be one of json, csv, pstats, tree"),
    *((p.whole(1, 9), text, "must be a whole number from 1 to 9") for text in ("", "0", "10", "1.5", "-1", "9" * 5000)),
]


@pytest.mark.parametrize(("read", "text", "value"), GOOD)
def test_a_good_text_is_read(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(("read", "text", "message"), BAD)
def test_a_bad_text_is_refused_with_what_is_allowed(read: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below, literally
        read(text)
    assert message in str(caught.value)


def refusal(pairs: Pairs, read: Callable[[p.Values], object], allowed: Sequence[p.Parameter]) -> tuple[str, str | None]:
    """Return the message and the parameter of a refusal."""
    with pytest.raises(QueryError) as caught:
        read(p.Values(pairs, allowed))
    assert (caught.value.status, caught.value.code) == (400, "bad_parameter")
    return caught.value.message, caught.value.parameter


def nothing(values: p.Values) -> None:
    """Read nothing more."""


@pytest.mark.parametrize(
    ("pairs", "message", "parameter"),
    [
        ([("mode", "trian")], f"mode='trian': must be one of {ALL_MODES}", "mode"),
        ([("start", "1"), ("start", "2")], "start may be given only once", "start"),
        ([("strat", "1")], "unknown parameter 'strat'; did you mean start? Allowed: start, end, mode", "strat"),
        ([("zzz", "1")], "unknown parameter 'zzz'. Allowed: start, end, mode, start_phase, end_phase, rule", "zzz"),
        ([("Start", "1")], "unknown parameter 'Start'; did you mean start?", "Start"),
        ([("", "")], "unknown parameter ''. Allowed: start", ""),
        ([("start", "x" * 500)], f"start='{'x' * 77}…': must be a step", "start"),
        ([("start", "\n\x1b")], r"start='\n\x1b': must be a step", "start"),
    ],
)
def test_a_refusal_names_the_parameter_and_what_is_allowed(pairs: Pairs, message: str, parameter: str) -> None:
    said, named = refusal(pairs, nothing, p.STEP_RANGE)
    assert said.startswith(message)
    assert named == parameter


def test_a_route_without_parameters_says_so() -> None:
    assert refusal([("job", "a")], nothing, ()) == ("unknown parameter 'job'. Allowed: none", "job")


def test_repeated_parameters_keep_their_order() -> None:
    values = p.Values([("node", "b"), ("job", "x"), ("node", "a")], p.SCOPE)
    assert values.all("node") == ("b", "a")
    assert values.all("framework") == ()


QUESTIONS: list[tuple[Callable[[p.Values], Question], Sequence[p.Parameter], Pairs, Question]] = [
    (p.step_question, p.STEP_RANGE, [("start", "5")], ByStep(start_step=5)),
    (
        p.step_question,
        p.STEP_RANGE,
        [("start", "5"), ("end", "5"), ("mode", "eval"), ("start_phase", "start"), ("end_phase", "forwardpassend")],
        ByStep(start_step=5, end_step=5, mode=EVAL, start_phase=StepPhase.START, end_phase=StepPhase.FORWARD_PASS_END),
    ),
    (
        p.step_question,
        p.STEP_RANGE,
        [("start", "5"), ("end", "9"), ("rule", "documented"), ("end_phase", "stepstart")],
        ByStepDocumented(start_step=5, end_step=9, end_phase=StepPhase.STEP_START),
    ),
    (p.time_question, p.TIME_RANGE, [("start", "1.5"), ("end", "1.5")], ByTime(start=1.5, end=1.5)),
    (
        p.time_question,
        p.TIME_RANGE,
        [("start", "-1"), ("end", "2"), ("overlap", "any")],
        ByTime(start=-1.0, end=2.0, overlap="any"),
    ),
    (
        p.modes_question,
        p.BOTH_MODES,
        [("start_mode", "train"), ("end_mode", "eval")],
        BetweenModes(start_mode=TRAIN, end_mode=EVAL),
    ),
    (p.pre_step_zero_question, (), [], PreStepZero()),
    (p.post_hook_close_question, (), [], PostHookClose()),
]


@pytest.mark.parametrize(("read", "allowed", "pairs", "question"), QUESTIONS)
def test_parameters_become_a_question(
    read: Callable[[p.Values], Question], allowed: Sequence[p.Parameter], pairs: Pairs, question: Question
) -> None:
    assert read(p.Values(pairs, allowed)) == question


@pytest.mark.parametrize(
    ("read", "allowed", "pairs", "message", "parameter"),
    [
        (p.step_question, p.STEP_RANGE, [], "start is missing: the first step, for example start=100", "start"),
        (p.step_question, p.STEP_RANGE, [("end", "3")], "start is missing", "start"),
        (p.step_question, p.STEP_RANGE, [("start", "5"), ("end", "4")], "end=4 is before start=5", "end"),
        (p.step_question, p.STEP_RANGE, [("start", "5"), ("rule", "documented")], "end is missing", "end"),
        (p.step_question, p.STEP_RANGE, [("start", "5"), ("rule", "x")], "rule='x': must be one of original", "rule"),
        (p.time_question, p.TIME_RANGE, [("end", "1")], "start is missing: seconds since the epoch", "start"),
        (p.time_question, p.TIME_RANGE, [("start", "1")], "end is missing: seconds since the epoch", "end"),
        (p.time_question, p.TIME_RANGE, [("start", "2"), ("end", "1")], "end=1.0 is before start=2.0", "end"),
        (p.modes_question, p.BOTH_MODES, [], "start_mode is missing: for example", "start_mode"),
        (p.modes_question, p.BOTH_MODES, [("start_mode", "train")], "end_mode is missing: for example", "end_mode"),
    ],
)
def test_a_question_that_is_not_whole_is_refused(
    read: Callable[[p.Values], Question], allowed: Sequence[p.Parameter], pairs: Pairs, message: str, parameter: str
) -> None:
    said, named = refusal(pairs, read, allowed)
    assert said.startswith(message)
    assert named == parameter


def test_the_scope_is_everything_unless_narrowed() -> None:
    assert p.scope_of(p.Values([], p.SCOPE), None) == Scope(profiler=None)
    assert p.scope_of(p.Values([], p.SCOPE), "cprofile") == Scope(profiler="cprofile")
    pairs = [("job", "a"), ("node", "0-x"), ("node", "1-x"), ("framework", "pytorch"), ("profiler", "pyinstrument")]
    assert p.scope_of(p.Values(pairs, p.SCOPE), "cprofile") == Scope(
        profiler="pyinstrument", jobs=("a",), nodes=("0-x", "1-x"), frameworks=("pytorch",)
    )


def test_any_node_stands_alone() -> None:
    assert p.scope_of(p.Values([("node", "any")], p.SCOPE), None).nodes == ("any",)
    said, named = refusal([("node", "any"), ("node", "0-x")], lambda values: p.scope_of(values, None), p.SCOPE)
    assert said == "node=any stands for one node and cannot be joined with others"
    assert named == "node"


def shown(pairs: Pairs) -> p.Rendering:
    """Read how an answer is shown."""
    values = p.Values(pairs, LISTED)
    return p.rendering_of(values, p.scope_of(values, "cprofile"))


def test_an_answer_is_json_by_self_time_without_callers_unless_told() -> None:
    assert shown([]) == p.Rendering(callers=False, sort="self", limit=None, format="json")
    assert shown([("callers", "true"), ("sort", "calls"), ("limit", "0"), ("format", "csv")]) == p.Rendering(
        callers=True, sort="calls", limit=0, format="csv"
    )


def test_pstats_has_its_callers_always() -> None:
    assert shown([("format", "pstats"), ("callers", "false")]).callers


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("format", "folded")], "format=folded needs call trees: add profiler=pyinstrument"),
        ([("format", "folded"), ("profiler", "cprofile")], "format=folded needs call trees"),
        ([("format", "html")], "format=html needs call trees: add profiler=pyinstrument"),
        ([("format", "tree")], "format=tree needs call trees: add profiler=pyinstrument"),
        ([("format", "pstats"), ("profiler", "pyinstrument")], "format=pstats needs call counts, which pyinstrument"),
    ],
)
def test_a_format_that_the_profiler_cannot_fill_is_refused(pairs: Pairs, message: str) -> None:
    with pytest.raises(QueryError, match=message) as caught:
        shown(pairs)
    assert caught.value.parameter == "format"


def test_descriptions_and_readers_agree() -> None:
    """What a parameter's schema lists is read, its default included; what lies outside is refused."""
    for parameter in (*LISTED, *p.PHASE_TABLE, *p.STEP_RANGE, *p.TIME_RANGE, *p.MODES, p.JOB_PHASE, *p.PAGE):
        schema = parameter.schema
        words = schema.get("enum", [])
        assert isinstance(words, list)
        for word in words:
            parameter.read(word)
        if words:
            assert schema.get("default", words[0]) in words
            with pytest.raises(ValueError, match="must be"):
                parameter.read("nonsense")
        for bound, outside in (("minimum", -1), ("maximum", 1)):
            limit = schema.get(bound)
            if isinstance(limit, int):
                parameter.read(str(limit))
                with pytest.raises(ValueError, match="must be"):
                    parameter.read(str(limit + outside))
        if schema["type"] == "number":
            assert math.isclose(float(str(parameter.read("1.5"))), 1.5)
