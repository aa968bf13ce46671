"""The original's answers, asked through the socket of a running daemon."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from monitor.api.schema import StatsAnswer
from monitor.client import AsyncClient
from monitor.tables import FunctionRow
from tests.analysis.answers import Row, assert_same_functions, without_addresses
from tests.integration.daemons import daemon_inside, settings_for
from tests.sources.moto_server import MotoServer


@pytest.fixture(params=["folder", "bucket"])
def parity_place(request: pytest.FixtureRequest, parity_dir: Path) -> Path | str:
    """Where the profiles lie that the original answered questions about: on disk, and in a bucket."""
    if request.param == "folder":
        return parity_dir
    request.getfixturevalue("aws_endpoint")
    server: MotoServer = request.getfixturevalue("moto_server")
    bucket = server.make_bucket()
    assert server.upload(bucket, "job/profiler-output/", parity_dir) > 100
    return f"s3://{bucket}/job/profiler-output"


Answers = list[tuple[str, dict[str, Any], Any]]


def load_cases(data_dir: Path, profiler: str) -> Answers:
    queries = json.loads((data_dir / "parity" / f"{profiler}_queries.json").read_text())
    with gzip.open(data_dir / "parity" / f"{profiler}_answers.json.gz") as file:
        answers = json.load(file)
    return [(method, arguments, answer) for (method, arguments), answer in zip(queries, answers, strict=True)]


def label(row: FunctionRow) -> str:
    """Name a function as pstats prints it."""
    if row.file == "~" and row.line == 0:
        return "{" + row.name[1:-1] + "}" if row.name.startswith("<") else row.name
    return f"{row.file}:{row.line}({row.name})"


def ours(rows: list[FunctionRow]) -> dict[str, Row]:
    """Put our rows into the form of the original's answers; a caller's counts are (total, primitive) there."""
    return {
        label(row): (
            row.primitive_calls or 0,
            row.calls or 0,
            row.self_seconds,
            row.cumulative_seconds,
            {
                label(caller): (
                    caller.calls or 0,
                    caller.primitive_calls or 0,
                    caller.self_seconds,
                    caller.cumulative_seconds,
                )
                for caller in row.callers or []
            },
        )
        for row in rows
    }


def theirs(answer: dict[str, Any] | None) -> dict[str, Row]:
    """Drop the addresses of the original's answer."""
    return without_addresses(answer or {})


def scope(arguments: dict[str, Any], profiler: str) -> dict[str, Any]:
    return {"profiler": profiler, "node": arguments.get("node_id", "any"), "callers": True}


async def ask(client: AsyncClient, method: str, arguments: dict[str, Any], profiler: str) -> StatsAnswer:
    words = scope(arguments, profiler)
    match method:
        case "fetch_profile_stats_by_step":
            keys = ("mode", "start_phase", "end_phase")
            more = {key: arguments[key] for key in keys if key in arguments}
            return await client.step(arguments["start_step"], arguments.get("end_step"), **more, **words)
        case "fetch_profile_stats_by_time":
            start, end = (arguments[f"{which}_time_since_epoch_in_secs"] for which in ("start", "end"))
            return await client.time(start, end, **words)
        case "fetch_profile_stats_between_modes":
            return await client.modes(arguments["start_mode"], arguments["end_mode"], **words)
        case "fetch_pre_step_zero_profile_stats":
            return await client.pre_step_zero(**words)
        case "fetch_post_hook_close_profile_stats":
            return await client.post_hook_close(**words)
    raise AssertionError(method)


async def check_list(client: AsyncClient, answer: list[dict[str, Any]], profiler: str) -> None:
    """The original lists a row a file, ours a row a span: pyinstrument's two files are one span."""
    listed = (await client.profiles(profiler=profiler, limit=10_000)).profiles
    columns = [key for key in answer[0] if key not in ("end_step", "framework")]
    mine = [{key: getattr(row, key) for key in columns} for row in listed]
    seen: list[dict[str, Any]] = []
    for row in answer:
        entry = {key: row[key] for key in columns}
        if entry not in seen:
            seen.append(entry)
    assert mine == seen


async def test_every_cprofile_question_gets_the_original_answer(
    parity_place: Path | str, data_dir: Path, short_tmp_path: Path
) -> None:
    cases = load_cases(data_dir, "cprofile")
    async with daemon_inside(settings_for(short_tmp_path, parity_place)) as (_, client):
        await client.jobs(fresh=True)
        for method, arguments, answer in cases:
            if method == "fetch_profile_stats_by_training_phase":
                phases = (await client.training_phases(**scope(arguments, "cprofile"))).phases
                mine = {f"{phase.start_mode},{phase.end_mode}": ours(phase.functions) for phase in phases}
                assert mine.keys() == answer.keys()
                for key, functions in mine.items():
                    assert_same_functions(functions, theirs(answer[key]))
            elif method == "documented_job_phases":
                for phase in (await client.job_phases(**scope(arguments, "cprofile"))).phases:
                    assert_same_functions(ours(phase.functions), theirs(answer[phase.job_phase]))
            elif method == "list_available_node_ids":
                nodes = (await client.nodes(profiler="cprofile")).nodes
                assert sorted(node.node for node in nodes) == answer
            elif method == "list_profile_stats":
                await check_list(client, answer, "cprofile")
            else:
                reply = await ask(client, method, arguments, "cprofile")
                assert (reply.spans == 0) == (answer is None), (method, arguments)
                assert_same_functions(ours(reply.functions), theirs(answer))


def frame_sums(sessions: list[dict[str, Any]] | None) -> dict[tuple[str, int, str], tuple[float, float]]:
    """Add up self and cumulative seconds by function, straight from the sessions' frames."""
    own: dict[tuple[str, int, str], float] = defaultdict(float)
    total: dict[tuple[str, int, str], float] = defaultdict(float)

    def walk(frame: dict[str, Any], above: frozenset[tuple[str, int, str]]) -> None:
        key = (frame["file_path"] or frame["file_path_short"] or "", frame["line_no"] or 0, frame["function"])
        children = [child for child in frame["children"] if child["function"] != "[self]"]
        own[key] += max(frame["time"] - math.fsum(child["time"] for child in children), 0.0)
        total[key] += 0.0 if key in above else frame["time"]
        for child in children:
            walk(child, above | {key})

    for session in sessions or []:
        if session["root_frame"] is not None:
            walk(session["root_frame"], frozenset())
    return {key: (own[key], total[key]) for key in own}


async def test_every_pyinstrument_question_selects_the_original_sessions(
    parity_place: Path | str, data_dir: Path, short_tmp_path: Path
) -> None:
    cases = load_cases(data_dir, "pyinstrument")
    async with daemon_inside(settings_for(short_tmp_path, parity_place)) as (_, client):
        await client.jobs(fresh=True)
        for method, arguments, answer in cases:
            if method == "list_available_node_ids":
                nodes = (await client.nodes(profiler="pyinstrument")).nodes
                assert sorted(node.node for node in nodes) == answer
            elif method == "list_profile_stats":
                await check_list(client, answer, "pyinstrument")
            else:
                reply = await ask(client, method, arguments, "pyinstrument")
                assert reply.spans == len(answer or []), (method, arguments)
                mine = {row.key: (row.self_seconds, row.cumulative_seconds) for row in reply.functions}
                expected = frame_sums(answer)
                assert mine.keys() == expected.keys()
                for key, values in mine.items():
                    assert values == pytest.approx(expected[key], rel=1e-9, abs=1e-12), key
