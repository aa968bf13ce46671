"""What the five dashboards show. Times of training are of profiled spans; shares and step times are recorded rules."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from tests.dashboards.panels import THIRD, Column, board, label_choice, length_choice, lines, listing, number

JOB = 'training_job="$training_job"'
WHERE = f'{JOB}, profiler="$profiler"'
LOOP = f'{WHERE}, job_phase="training_loop", start_mode="train"'
CHOSEN = f'{WHERE}, node=~"$node", start_mode=~"$start_mode"'
FUNCTION = f'{CHOSEN}, function="$function"'
SELF, CUMULATIVE, CALLS = (
    f"phasewatch_function_{what}_total" for what in ("self_seconds", "cumulative_seconds", "calls")
)
STEPS = f'phasewatch_steps_total{{{WHERE}, mode="train"}}'
BUCKETS = f'sum by (le) (rate(phasewatch_span_seconds_bucket{{{WHERE}, mode="train"}}[10m]))'
TOP = 10

training_job = label_choice("training_job", "phasewatch_profiles_total", title="Job")
profiler = label_choice("profiler", f"phasewatch_profiles_total{{{JOB}}}", title="Profiler", first="cprofile")
node = label_choice("node", f"phasewatch_profiles_total{{{WHERE}}}", title="Node", several=True)
start_mode = label_choice("start_mode", f"phasewatch_profiles_total{{{WHERE}}}", title="Mode", several=True)
function = label_choice("function", f"{SELF}{{{WHERE}}}", title="Function")
window = length_choice("window", ("10m", "5m", "30m", "1h", "6h"), title="Mean over")
before = length_choice("before", ("1h", "30m", "3h", "6h", "1d", "7d"), title="Before means ago")


def overview() -> builders.Dashboard:
    """Phases, steps and the functions that weigh most."""
    step = "phasewatch_step_seconds:ratio_rate10m"
    return board(
        "phasewatch-overview",
        "phasewatch / Overview",
        "How a training job does: steps, what they consist of, and the functions that weigh most.",
        (training_job, profiler),
        (
            number("Step time", f"training_job:{step}{{{WHERE}}}", unit="s", says="Mean length of a profiled step."),
            number(
                "Steps",
                f"training_job:phasewatch_last_step:deriv10m{{{WHERE}}}",
                unit="hertz",
                says="Steps a second of the node that has come farthest, profiled or not.",
            ),
            number(
                "Last step",
                f'max(phasewatch_last_step{{{WHERE}, mode="train"}})',
                unit="none",
                says="The highest step profiled.",
            ),
            number(
                "Data loading",
                f"max(node:phasewatch_data_loading_share:ratio_rate10m{{{WHERE}}})",
                unit="percentunit",
                says="Share of step time between steps, on the node that waits most.",
            ),
            number(
                "Nodes",
                f"count(count by (node) (phasewatch_profiles_total{{{WHERE}}}))",
                unit="none",
                says="Nodes that have written profiles.",
            ),
            number(
                "Newest profile",
                f"time() - max(phasewatch_last_profile_timestamp_seconds{{{WHERE}}})",
                unit="s",
                says="Age of the newest profile, by the clock of its node.",
            ),
            number(
                "Node spread",
                f"max(phasewatch_step_spread_ratio{{{WHERE}}})",
                unit="none",
                says="The slowest node's last steps against the median node's; 1 where all are alike.",
                span=THIRD,
            ),
            number(
                "In (other)",
                f"training_job:phasewatch_other_share:ratio_rate10m{{{WHERE}}}",
                unit="percentunit",
                says="Share of self time in training that functions without a series take.",
                span=THIRD,
            ),
            number(
                "Refused a series",
                f"training_job:phasewatch_function_series_limit_hits:increase1h{{{WHERE}}}",
                unit="short",
                says="Functions, added up over the choices of an hour; above 0 the budget is used up.",
                span=THIRD,
            ),
            lines(
                "Parts of a step",
                (f"avg by (part) (node_part:{step}{{{WHERE}}})", "{{part}}"),
                unit="s",
                says="Seconds of a step by part, mean of nodes; the parts add up to the step.",
                stacked=True,
            ),
            lines(
                "Step time by node",
                (f"node:{step}{{{WHERE}}}", "{{node}}"),
                unit="s",
                says="Mean length of a profiled step.",
            ),
            lines(
                "Packages, share of the loop",
                (f"topk({TOP}, package:phasewatch_package_self_share:ratio_rate10m{{{WHERE}}})", "{{package}}"),
                unit="percentunit",
                says="The packages that take most of the training loop themselves, whatever function has a series.",
                stacked=True,
            ),
            lines(
                "Functions, share of step time",
                (f"topk({TOP}, function:phasewatch_self_share:ratio_rate10m{{{WHERE}}})", "{{function}}"),
                unit="percentunit",
                says="The functions that take most themselves; (other) is what has no series.",
            ),
            lines(
                "Time by phase",
                (
                    f"sum by (job_phase, start_mode, end_mode) (rate({SELF}{{{WHERE}}}[10m]))",
                    "{{job_phase}}: {{start_mode}} to {{end_mode}}",
                ),
                unit="s",
                says="Profiled seconds a second, all nodes together.",
                stacked=True,
            ),
            lines(
                "Length of spans",
                *((f"histogram_quantile({share}, {BUCKETS})", f"{share:.0%}") for share in (0.5, 0.9, 0.99)),
                unit="s",
                says="Quantiles of profiled spans that start in training.",
            ),
            lines(
                "Evaluation",
                (
                    "sum by (node) (rate(phasewatch_step_part_seconds_total"
                    f'{{{WHERE}, mode="eval"}}[10m])) / (sum by (node) (rate('
                    f"phasewatch_step_part_seconds_total{{{WHERE}}}[10m])) > 0)",
                    "{{node}}",
                ),
                unit="percentunit",
                says="Share of the profiled seconds of the loop that evaluation takes.",
            ),
            lines(
                "Alerts",
                (
                    "count by (alertname, severity) "
                    '(ALERTS{alertname=~"Phasewatch.+", severity!="none", alertstate="firing"})',
                    "{{alertname}} ({{severity}})",
                ),
                unit="none",
                says="Alerts that fire, of all jobs and daemons. Nothing is good.",
            ),
        ),
    )


def functions() -> builders.Dashboard:
    """Which functions take the time, and one function by node."""

    def total(metric: str) -> str:
        return f"sum by (function) (increase({metric}{{{CHOSEN}}}[$__range]))"

    def by_node(metric: str) -> str:
        return f"sum by (node) (rate({metric}{{{FUNCTION}}}[$window]))"

    return board(
        "phasewatch-functions",
        "phasewatch / Functions",
        "Functions by self time, cumulative time and calls over the chosen range, and one of them over time.",
        (training_job, profiler, node, start_mode, function, window),
        (
            listing(
                "Functions in the chosen range",
                Column(title="Self", expr=total(SELF), unit="s"),
                Column(title="Cumulative", expr=total(CUMULATIVE), unit="s"),
                Column(title="Calls", expr=total(CALLS), unit="short"),
                Column(title="Self per call", expr=f"{total(SELF)} / ({total(CALLS)} > 0)", unit="s"),
                by="function",
                says="Self time may be summed, cumulative time must not be. Samplers count no calls.",
                link=True,
            ),
            lines("$function: self time", (by_node(SELF), "{{node}}"), unit="s", says="Seconds a second, by node."),
            lines("$function: cumulative time", (by_node(CUMULATIVE), "{{node}}"), unit="s", says="With all it calls."),
            lines("$function: calls", (by_node(CALLS), "{{node}}"), unit="cps", says="Calls a second, by node."),
            lines(
                "$function: cumulative time per call",
                (f"{by_node(CUMULATIVE)} / ({by_node(CALLS)} > 0)", "{{node}}"),
                unit="s",
                says="More calls, or longer ones?",
            ),
        ),
    )


def nodes() -> builders.Dashboard:
    """How nodes differ."""
    step = "node:phasewatch_step_seconds:ratio_rate10m"
    per_step = (
        f'sum by (node) (rate({SELF}{{{LOOP}, function="$function"}}[$window]))'
        f" / (sum by (node) (rate({STEPS}[$window])) > 0)"
    )
    return board(
        "phasewatch-nodes",
        "phasewatch / Nodes",
        "Which node holds the others up, in which part of a step, and in which function.",
        (training_job, profiler, function, window),
        (
            lines(
                "Lost against the median node",
                (f"node:phasewatch_step_excess:ratio_rate10m{{{WHERE}}}", "{{node}}"),
                unit="percentunit",
                says="In the parts of its step in which a node is slower than the median; a share of the median step.",
            ),
            lines(
                "Step time", (f"{step}{{{WHERE}}}", "{{node}}"), unit="s", says="Equal where nodes wait for each other."
            ),
            lines(
                "Spread",
                (f"phasewatch_step_spread_ratio{{{WHERE}}}", "slowest / median"),
                unit="none",
                says="The slowest node's last steps against the median node's; nodes that ended are left out.",
            ),
            lines(
                "Data loading",
                (f"node:phasewatch_data_loading_share:ratio_rate10m{{{WHERE}}}", "{{node}}"),
                unit="percentunit",
                says="Share of step time between the end of a step and the start of the next.",
            ),
            lines(
                "Parts of a step",
                (
                    f"node_part:phasewatch_step_seconds:ratio_rate10m{{{WHERE}}}",
                    "{{node}}: {{part}}",
                ),
                unit="s",
                says="Who is slow in one part, while the others wait in another?",
            ),
            lines(
                "$function per step", (per_step, "{{node}}"), unit="s", says="Self seconds of a training step, by node."
            ),
            lines(
                "Last step",
                (f'max by (node) (phasewatch_last_step{{{WHERE}, mode="train"}})', "{{node}}"),
                unit="none",
                says="The highest step profiled.",
            ),
            lines(
                "Age of the newest profile",
                (f"time() - max by (node) (phasewatch_last_profile_timestamp_seconds{{{WHERE}}})", "{{node}}"),
                unit="s",
                says="By the clock of the node.",
            ),
        ),
    )


def regressions() -> builders.Dashboard:
    """What takes longer than before."""

    def per_step(offset: str = "") -> str:
        return (
            f"sum by (function) (rate({SELF}{{{LOOP}}}[$window]{offset}))"
            f" / scalar(sum(rate({STEPS}[$window]{offset})) > 0)"
        )

    now, past = per_step(), per_step(" offset $before")
    share, share_past = "function:phasewatch_self_share:ratio_rate10m", "function:phasewatch_self_share_past:avg1h"
    step, step_past = (
        "training_job:phasewatch_step_seconds:ratio_rate10m",
        "training_job:phasewatch_step_seconds_past:avg1h",
    )
    return board(
        "phasewatch-regressions",
        "phasewatch / Regressions",
        "Which function made training steps slower, and since when.",
        (training_job, profiler, window, before),
        (
            listing(
                "Self seconds per training step: now and before",
                Column(title="Difference", expr=f"({now}) - ({past}) or ({now})", unit="s"),
                Column(title="Now", expr=now, unit="s"),
                Column(title="Before", expr=past, unit="s"),
                by="function",
                says="At the end of the chosen range. A function that had no series before counts as new.",
                link=True,
            ),
            lines(
                "Step time: now and before",
                (f"{step}{{{WHERE}}}", "now"),
                (f"{step}{{{WHERE}}} offset $before", "before"),
                (f"{step_past}{{{WHERE}}}", "what alerts compare with"),
                unit="s",
                says="Mean length of a profiled step.",
            ),
            lines(
                "Functions that grew",
                (f"topk({TOP}, {share}{{{WHERE}}} - {share_past}{{{WHERE}}} > 0.001)", "{{function}}"),
                unit="percentunit",
                says="Share of step time above its own past: what alerts see.",
            ),
            lines(
                "Functions that shrank",
                (f"topk({TOP}, {share_past}{{{WHERE}}} - {share}{{{WHERE}}} > 0.001)", "{{function}}"),
                unit="percentunit",
                says="Share of step time below its own past.",
            ),
            lines(
                "Self seconds per step",
                (f"topk({TOP}, {now})", "{{function}}"),
                unit="s",
                says="Functions that take most of a step, over time.",
                stacked=True,
            ),
        ),
    )
