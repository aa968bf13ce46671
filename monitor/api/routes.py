"""The routes: what each one takes and answers. No sockets; the engine does the finding."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import anyio
import msgspec

from monitor.answers import ANY_NODE, Engine, FrameTable, PhaseFrames, PhaseStats, Scope, SpanRow
from monitor.api import parameters as p
from monitor.api.schema import (
    JobPhasesAnswer,
    JobPhaseTrees,
    JobsAnswer,
    NodesAnswer,
    ProfilesAnswer,
    StatsAnswer,
    TrainingPhasesAnswer,
    TrainingPhaseTrees,
    TreeAnswer,
    job_answer,
    job_phase_answer,
    node_answer,
    phase_trees,
    profile_answer,
    stats_answer,
    training_phase_answer,
    tree_answer,
)
from monitor.catalog import SeriesKey
from monitor.errors import QueryError, ReadError
from monitor.exports.csv import to_csv
from monitor.exports.flame import to_html, to_speedscope
from monitor.exports.folded import to_folded
from monitor.exports.pstats import to_pstats
from monitor.layout import data_file
from monitor.selection import Question
from monitor.tables import StatsTable, sort_table

SMALL_ROWS = 3_000
"""Answers with more rows are put together in a worker thread, so that the event loop stays free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What goes back to the client."""

    body: bytes
    content_type: str = "application/json"
    file_name: str | None = None


Handler: TypeAlias = Callable[[Engine, p.Values], Awaitable[Reply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route of /v1.

    Attributes:
        answer: the struct that describes its JSON, or None where it is free (status) or no JSON.
        more: the structs of its JSON in other formats than the default one.
    """

    path: str
    summary: str
    parameters: Sequence[p.Parameter]
    handler: Handler
    answer: type[msgspec.Struct] | None
    more: Sequence[type[msgspec.Struct]] = ()


# -- handlers ----------------------------------------------------------------------------------------------------------


async def answer_stats(engine: Engine, values: p.Values, read: Callable[[p.Values], Question], name: str) -> Reply:
    """Answer a question about spans with one table."""
    question = read(values)
    scope = p.scope_of(values, "cprofile")
    shown = p.rendering_of(values, scope)
    await prepare(engine, values, scope)
    if shown.format == "profiles":
        return await off_loop(partial(render_spans, await engine.chosen(question, scope)), SMALL_ROWS)
    if shown.format in p.TREE_FORMATS:
        tree = await engine.frames(question, scope)
        return await anyio.to_thread.run_sync(render_tree, tree, shown.format, name, abandon_on_cancel=True)
    table = await engine.stats(question, scope, callers=shown.callers)
    return await off_loop(partial(render_table, table, shown, name), rows_in(table))


async def answer_training_phases(engine: Engine, values: p.Values) -> Reply:
    """Answer with one table for each pair of modes."""
    scope, shown = p.scope_of(values, "cprofile"), p.rendering_of(values, p.scope_of(values, "cprofile"))
    await prepare(engine, values, scope)
    if shown.format == "tree":
        return await render_phase_trees(p.picked(engine.training_phase_frames(scope), values, "start_mode", "end_mode"))
    found = await engine.training_phases(scope, callers=shown.callers)
    phases = p.picked(found, values, "start_mode", "end_mode")
    picked = values.get("start_mode") is not None and values.get("end_mode") is not None
    return await answer_phases(phases, shown, picked=picked, pick="start_mode and end_mode", name="training-phases")


async def answer_job_phases(engine: Engine, values: p.Values) -> Reply:
    """Answer with one table for each job phase."""
    scope, shown = p.scope_of(values, "cprofile"), p.rendering_of(values, p.scope_of(values, "cprofile"))
    await prepare(engine, values, scope)
    if shown.format == "tree":
        return await render_phase_trees(p.picked(engine.job_phase_frames(scope), values, "job_phase"))
    phases = p.picked(await engine.job_phases(scope, callers=shown.callers), values, "job_phase")
    picked = values.get("job_phase") is not None
    return await answer_phases(phases, shown, picked=picked, pick="job_phase", name="job-phases")


async def answer_phases(phases: list[PhaseStats], shown: p.Rendering, *, picked: bool, pick: str, name: str) -> Reply:
    """Show phases; formats that hold one table need one phase."""
    if shown.format == "pstats":
        if not picked or len(phases) != 1:
            raise QueryError(f"format=pstats holds one phase: pick one that has spans with {pick}", parameter="format")
        return await off_loop(partial(render_table, phases[0].table, shown, name), rows_in(phases[0].table))
    rows = sum(rows_in(phase.table) for phase in phases)
    return await off_loop(partial(render_phases, phases, shown, name), rows)


async def answer_profiles(engine: Engine, values: p.Values) -> Reply:
    """List spans, a page at a time."""
    scope = p.scope_of(values, None)
    await prepare(engine, values, scope)
    after: int = values.get("after", 0)  # type: ignore[assignment]
    limit: int = values.get("limit", 1000)  # type: ignore[assignment]
    rows = engine.profiles(scope, after=after, limit=limit + 1)
    following = after + limit if len(rows) > limit else None
    answer = ProfilesAnswer(profiles=[profile_answer(row) for row in rows[:limit]], next=following)
    return Reply(body=msgspec.json.encode(answer))


async def answer_nodes(engine: Engine, values: p.Values) -> Reply:
    """List who wrote spans."""
    scope = p.scope_of(values, None)
    await prepare(engine, values, scope)
    return Reply(body=msgspec.json.encode(NodesAnswer([node_answer(row) for row in engine.nodes(scope)])))


async def answer_jobs(engine: Engine, values: p.Values) -> Reply:
    """List jobs."""
    await prepare(engine, values, Scope(profiler=None))
    return Reply(body=msgspec.json.encode(JobsAnswer([job_answer(row) for row in engine.jobs()])))


async def answer_status(engine: Engine, values: p.Values) -> Reply:
    """Tell how the daemon does."""
    return Reply(body=msgspec.json.encode(engine.status()))


async def answer_profile(engine: Engine, values: p.Values) -> Reply:
    """Give a span's data file as it is in its source."""
    series = SeriesKey(
        job=values.text("job"),
        framework=values.text("framework"),
        profiler=values.text("profiler"),
        node=values.text("node"),
    )
    name = values.text("span")
    try:
        data = await engine.read_profile(series, name)
    except ReadError as error:
        message = f"the data file of span {p.shortened(name)} {error.reason}"
        raise QueryError(message, parameter="span", status=404, code="not_found") from error
    if data is None:
        message = f"there is no span {p.shortened(name)} of this job, framework, profiler and node"
        raise QueryError(message, parameter="span", status=404, code="not_found")
    return Reply(body=data, content_type="application/octet-stream", file_name=data_file(series.profiler))


# -- shared ------------------------------------------------------------------------------------------------------------


async def prepare(engine: Engine, values: p.Values, scope: Scope) -> None:
    """Poll first where that is asked for, and refuse names that have no spans."""
    if values.get("fresh"):
        await engine.refresh()
    check_names(engine, scope)


def check_names(engine: Engine, scope: Scope) -> None:
    """Raise a 404 for a job, node or framework that has no spans at all, and name what there is."""
    rows = engine.nodes(Scope(profiler=None)) if scope.jobs or scope.nodes or scope.frameworks else []
    for what, wanted in (("job", scope.jobs), ("node", scope.nodes), ("framework", scope.frameworks)):
        there = sorted({str(getattr(row, what)) for row in rows})
        for name in wanted:
            if name not in there and wanted != ANY_NODE:
                known = ", ".join(there[:10]) + (", …" if len(there) > 10 else "") or "none yet"
                message = f"{what} {p.shortened(name)} has no profiles; there are: {known}"
                raise QueryError(message, parameter=what, status=404, code="not_found")


async def off_loop(render: Callable[[], Reply], rows: int) -> Reply:
    """Put a large answer together in a worker thread, a small one here."""
    if rows <= SMALL_ROWS:
        return render()
    return await anyio.to_thread.run_sync(render, abandon_on_cancel=True)


def rows_in(table: StatsTable) -> int:
    """Count the rows of a table."""
    return len(table.function) + (len(table.callers.function) if table.callers is not None else 0)


def render_table(table: StatsTable, shown: p.Rendering, name: str) -> Reply:
    """Show one table."""
    ordered = sort_table(table, shown.sort, shown.limit)
    if shown.format == "pstats":
        return Reply(body=to_pstats(ordered), content_type="application/octet-stream", file_name=f"{name}.pstats")
    if shown.format == "csv":
        text = to_csv([((), ordered)], (), callers=shown.callers)
        return Reply(body=text.encode(), content_type="text/csv; charset=utf-8", file_name=f"{name}.csv")
    return Reply(body=msgspec.json.encode(stats_answer(ordered)))


def render_spans(rows: list[SpanRow]) -> Reply:
    """Show spans."""
    return Reply(body=msgspec.json.encode(ProfilesAnswer(profiles=[profile_answer(row) for row in rows], next=None)))


def render_tree(tree: FrameTable, form: p.Format, name: str) -> Reply:
    """Show one call tree."""
    if form == "folded":
        text = to_folded(tree)
        return Reply(body=text.encode(), content_type="text/plain; charset=utf-8", file_name=f"{name}.folded")
    title = f"phasewatch {name}"
    if form == "html":
        return Reply(body=to_html(tree, title).encode(), content_type="text/html; charset=utf-8")
    if form == "speedscope":
        return Reply(body=to_speedscope(tree, title).encode(), file_name=f"{name}.speedscope.json")
    return Reply(body=msgspec.json.encode(tree_answer(tree)))


async def render_phase_trees(phases: list[PhaseFrames]) -> Reply:
    """Show the call trees of phases."""
    answer = await anyio.to_thread.run_sync(phase_trees, phases, abandon_on_cancel=True)
    return Reply(body=msgspec.json.encode(answer))


def render_phases(phases: list[PhaseStats], shown: p.Rendering, name: str) -> Reply:
    """Show several tables."""
    ordered = [
        PhaseStats(
            table=sort_table(phase.table, shown.sort, shown.limit),
            start_mode=phase.start_mode,
            end_mode=phase.end_mode,
            job_phase=phase.job_phase,
        )
        for phase in phases
    ]
    by_job = name == "job-phases"
    if shown.format == "csv":
        leading = ("job_phase",) if by_job else ("start_mode", "end_mode")
        tables = [(phase_words(phase), phase.table) for phase in ordered]
        text = to_csv(tables, leading, callers=shown.callers)
        return Reply(body=text.encode(), content_type="text/csv; charset=utf-8", file_name=f"{name}.csv")
    answer: Any = (
        JobPhasesAnswer([job_phase_answer(phase) for phase in ordered])
        if by_job
        else TrainingPhasesAnswer([training_phase_answer(phase) for phase in ordered])
    )
    return Reply(body=msgspec.json.encode(answer))


def phase_words(phase: PhaseStats) -> tuple[str, ...]:
    """Name a phase."""
    if phase.start_mode is not None and phase.end_mode is not None:
        return phase.start_mode.word, phase.end_mode.word
    return (str(phase.job_phase),)


def stats_route(name: str, summary: str, own: Sequence[p.Parameter], read: Callable[[p.Values], Question]) -> Route:
    """Describe a route that answers with one table."""
    return Route(
        path=f"/v1/stats/{name}",
        summary=summary,
        parameters=(*own, *p.SCOPE, *p.TABLE),
        handler=partial(answer_stats, read=read, name=name),
        answer=StatsAnswer,
        more=(ProfilesAnswer, TreeAnswer),
    )


ROUTES = (
    Route(path="/v1/status", summary="How the daemon does.", parameters=(), handler=answer_status, answer=None),
    Route(path="/v1/jobs", summary="Jobs.", parameters=(p.FRESH,), handler=answer_jobs, answer=JobsAnswer),
    Route(path="/v1/nodes", summary="Who wrote spans.", parameters=p.SCOPE, handler=answer_nodes, answer=NodesAnswer),
    Route(
        path="/v1/profiles",
        summary="Spans by (start time, node).",
        parameters=(*p.SCOPE, *p.PAGE),
        handler=answer_profiles,
        answer=ProfilesAnswer,
    ),
    Route(
        path="/v1/profile",
        summary="The data file of one span.",
        parameters=p.ONE_SPAN,
        handler=answer_profile,
        answer=None,
    ),
    stats_route("step", "Functions of a range of steps.", p.STEP_RANGE, p.step_question),
    stats_route("time", "Functions of a range of time.", p.TIME_RANGE, p.time_question),
    stats_route("modes", "Functions between two modes.", p.BOTH_MODES, p.modes_question),
    stats_route("pre-step-zero", "Functions before step zero.", (), p.pre_step_zero_question),
    stats_route("post-hook-close", "Functions after the hook closed.", (), p.post_hook_close_question),
    Route(
        path="/v1/stats/training-phases",
        summary="Functions by training phase.",
        parameters=(*p.MODES, *p.SCOPE, *p.PHASE_TABLE),
        handler=answer_training_phases,
        answer=TrainingPhasesAnswer,
        more=(TrainingPhaseTrees,),
    ),
    Route(
        path="/v1/stats/job-phases",
        summary="Functions by job phase.",
        parameters=(p.JOB_PHASE, *p.SCOPE, *p.PHASE_TABLE),
        handler=answer_job_phases,
        answer=JobPhasesAnswer,
        more=(JobPhaseTrees,),
    ),
)

WATCH_PARAMETERS = (p.JOB, p.NODE, p.FRAMEWORK, p.PROFILER)
