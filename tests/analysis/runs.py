"""Random runs on disk and random questions about them: small, and full of what real runs seldom have at once: all modes
and phases, gaps, overlaps, equal start times, `*` steps, nodes that have nothing, phases that have nothing."""

from __future__ import annotations

import json
import marshal
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from monitor.layout import SpanKey, format_path
from monitor.spans import Moment, PythonProfileModes, StepPhase, format_span_name

Question: TypeAlias = tuple[str, dict[str, Any]]

EPOCH_US = 1_796_000_000_000_000.0
FUNCTIONS = [
    ("/opt/ml/code/train.py", 10, "step"),
    ("/opt/ml/code/train.py", 31, "<lambda>"),
    ("/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py", 1518, "_call_impl"),
    ("/opt/conda/lib/python3.11/json/decoder.py", 332, "decode"),
    ("~", 0, "<built-in method builtins.len>"),
    ("~", 0, "<built-in method __new__ of type object at 0x7f826d29bdc0>"),
    ("~", 0, "<built-in method __new__ of type object at 0x55d0c8a3e1a0>"),
    ("/opt/ml/code/модель.py", 7, "forward"),
]
MODES = list(PythonProfileModes)
PHASES = list(StepPhase)
LIKELY_PAIRS = [
    (PythonProfileModes.TRAIN, PythonProfileModes.TRAIN),
    (PythonProfileModes.TRAIN, PythonProfileModes.POST_HOOK_CLOSE),
    (PythonProfileModes.PRE_STEP_ZERO, PythonProfileModes.POST_HOOK_CLOSE),
]


def write_run(base: Path, profiler: str, chance: Random) -> Path:
    """Leave a run; returns the folder that the original takes."""
    nodes = [f"{rank}-algo-{rank}" for rank in range(chance.choice([1, 1, 2, 3]))]
    folder = base / "framework" / "pytorch" / profiler
    folder.mkdir(parents=True)
    moments = [EPOCH_US + chance.randint(0, 40) * 250_000.25 for _ in range(30)]
    for node in nodes:
        (folder / node).mkdir()
        taken: set[float] = set()
        for _ in range(chance.choice([0, 1, 4, 12])):
            start, end = random_moments(chance, moments)
            if profiler == "pyinstrument" and start.time_us in taken:
                continue  # the original cannot read two sessions of one node that start together: see DEVIATIONS
            taken.add(start.time_us)
            key = SpanKey(framework="pytorch", profiler=profiler, node=node, span=format_span_name(start, end))
            write_profile(Path(format_path(str(base), key)), profiler, chance)
    return folder


def random_moments(chance: Random, times: list[float]) -> tuple[Moment, Moment]:
    """Choose both ends of a span: mostly like a training loop's, sometimes anything at all."""
    begin, end = sorted(chance.choices(times, k=2))
    kind = chance.random()
    step = chance.randint(0, 6)
    train = PythonProfileModes.TRAIN
    if kind < 0.1:
        first = Moment(PythonProfileModes.PRE_STEP_ZERO, None, StepPhase.START, begin)
        return first, Moment(chance.choice(MODES), 0, StepPhase.STEP_START, end)
    if kind < 0.2:
        mode = chance.choice([train, PythonProfileModes.PRE_STEP_ZERO])
        phase = chance.choice([StepPhase.STEP_END, StepPhase.END])
        first = Moment(mode, chance.choice([step, None]), phase, begin)
        return first, Moment(PythonProfileModes.POST_HOOK_CLOSE, None, StepPhase.END, end)
    if kind < 0.7:
        phases = sorted(chance.choices(PHASES[1:4], k=2))
        later = step + (0 if phases[0] < phases[1] else chance.choice([0, 1, 1, 2]))
        return Moment(train, step, phases[0], begin), Moment(train, later, phases[1], end)
    return (
        Moment(chance.choice(MODES), chance.choice([step, None]), chance.choice(PHASES), begin),
        Moment(chance.choice(MODES), chance.choice([chance.randint(0, 6), None]), chance.choice(PHASES), end),
    )


def write_profile(path: Path, profiler: str, chance: Random) -> None:
    """Leave one span folder; where two spans got one name, the later one's content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if profiler == "cprofile":
        path.write_bytes(marshal.dumps(random_stats(chance), 4))
        return
    path.write_text(json.dumps(random_session(chance)), encoding="utf-8")
    path.with_suffix(".html").write_text("<!doctype html><title>a session</title>\n", encoding="utf-8")


def random_stats(chance: Random) -> dict[Any, Any]:
    """Make a pstats dictionary; a caller is always a function of its own, as profilers write it."""
    functions = chance.sample(FUNCTIONS, chance.randint(1, len(FUNCTIONS)))
    stats: dict[Any, Any] = {}
    for function in functions:
        callers = {
            caller: (chance.randint(1, 9), chance.randint(1, 9), chance.random(), chance.random())
            for caller in chance.sample(functions, chance.randint(0, min(3, len(functions))))
        }
        primitive = chance.randint(1, 50)
        stats[function] = (primitive, primitive + chance.randint(0, 9), chance.random(), chance.random() * 3, callers)
    return stats


def random_session(chance: Random) -> dict[str, Any]:
    """Make a pyinstrument session; one in ten was not recorded."""
    if chance.random() < 0.1:
        return {"root_frame": None}
    return {
        "start_time": 1_796_000_000.0 + chance.random(),
        "duration": chance.random(),
        "sample_count": chance.randint(1, 99),
        "program": "train.py",
        "cpu_time": chance.random(),
        "root_frame": random_frame(chance, 0),
    }


def random_frame(chance: Random, depth: int) -> dict[str, Any]:
    """Make a frame with what it calls."""
    file, line, name = chance.choice(FUNCTIONS)
    children = [random_frame(chance, depth + 1) for _ in range(chance.randint(0, 3 if depth < 3 else 0))]
    seconds = sum(child["time"] for child in children) + round(chance.random(), 6)
    frame = {
        "function": name,
        "file_path_short": file,
        "file_path": file,
        "line_no": line,
        "time": round(seconds, 6),
        "is_application_code": chance.random() < 0.5,
        "children": children,
    }
    return frame | ({"group_id": f"{chance.getrandbits(128):032x}"} if chance.random() < 0.3 else {})


def random_questions(profiler: str, chance: Random, count: int) -> list[Question]:
    """Choose questions, each about one node, the earliest one's or one that is not there."""
    return [random_question(profiler, chance) for _ in range(count)]


def random_question(profiler: str, chance: Random) -> Question:
    """Choose one question."""
    name = chance.choice([None, None, None, "0-algo-0", "1-algo-1", "gone"])
    node: dict[str, Any] = {} if name is None else {"node_id": name}
    kinds = ["step"] * 5 + ["time"] * 3 + ["modes"] * 2 + ["pre", "post", "list", "nodes"]
    match chance.choice(kinds + (["training", "job"] if profiler == "cprofile" else [])):
        case "step":
            return "fetch_profile_stats_by_step", node | random_steps(chance)
        case "time":
            first, last = sorted(EPOCH_US / 1e6 + chance.randint(-2, 42) * 0.25000025 for _ in range(2))
            words = {"start_time_since_epoch_in_secs": first, "end_time_since_epoch_in_secs": last}
            return "fetch_profile_stats_by_time", node | words
        case "modes":
            pair = chance.choice([*LIKELY_PAIRS, tuple(chance.choices(MODES, k=2))])
            modes = dict(zip(("start_mode", "end_mode"), (mode.word for mode in pair), strict=True))
            return "fetch_profile_stats_between_modes", node | modes
        case "pre":
            return "fetch_pre_step_zero_profile_stats", node
        case "post":
            return "fetch_post_hook_close_profile_stats", node
        case "training":
            return "fetch_profile_stats_by_training_phase", node
        case "job":
            return "documented_job_phases", node
        case "nodes":
            return "list_available_node_ids", {}
        case _:
            return "list_profile_stats", {}


def random_steps(chance: Random) -> dict[str, Any]:
    """Choose a range of steps, as a caller may write it."""
    first, last = sorted(chance.randint(-1, 8) for _ in range(2))
    words: dict[str, Any] = {"start_step": first}
    if chance.random() < 0.7:
        words["end_step"] = "inf" if chance.random() < 0.1 else last
    if chance.random() < 0.2:
        words["mode"] = chance.choice(MODES).word
    for name in ("start_phase", "end_phase"):
        if chance.random() < 0.5:
            words[name] = chance.choice(PHASES).value
    return words
