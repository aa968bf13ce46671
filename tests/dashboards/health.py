"""What the dashboard of the daemon itself shows."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from tests.dashboards.panels import board, label_choice, lines, number

HERE = 'instance=~"$instance"'
PROCESS = f'job="phasewatch", {HERE}'

instance = label_choice("instance", "phasewatch_build_info", title="Daemon", several=True)


def rate(metric: str, by: str = "instance") -> str:
    """Sum the rate of a counter of the chosen daemons."""
    return f"sum by ({by}) (rate({metric}{{{HERE}}}[$__rate_interval]))"


def daemon_health() -> builders.Dashboard:
    """Whether profiles come in, in time and whole, and what that costs."""
    return board(
        "phasewatch-daemon",
        "phasewatch / Daemon health",
        "Whether profiles come in, in time and whole, and what that costs.",
        (instance,),
        (
            number("Up", f"min(up{{{PROCESS}}})", unit="bool_yes_no", says="Every chosen daemon answers."),
            number(
                "Sources",
                f"min(phasewatch_source_available{{{HERE}}})",
                unit="bool_yes_no",
                says="Every source can be read.",
            ),
            number(
                "Waiting",
                f"sum(phasewatch_ingest_waiting_files{{{HERE}}})",
                unit="short",
                says="Files found and not stored yet.",
            ),
            number(
                "Set aside",
                f"sum(phasewatch_ingest_set_aside_files{{{HERE}}})",
                unit="short",
                says="Files that are broken and have not changed since.",
            ),
            number(
                "Store", f"sum(phasewatch_store_size_bytes{{{HERE}}})", unit="bytes", says="Size of the store's files."
            ),
            number(
                "Version",
                f"count by (version) (phasewatch_build_info{{{HERE}}})",
                unit="none",
                says="How many daemons run which version.",
            ),
            lines(
                "Profiles stored",
                (rate("phasewatch_ingest_profiles_total"), "{{instance}}"),
                unit="cps",
                says="A second.",
            ),
            lines(
                "Files that wait",
                (f"phasewatch_ingest_waiting_files{{{HERE}}}", "waiting {{instance}}"),
                (f"phasewatch_ingest_retrying_files{{{HERE}}}", "to be tried again {{instance}}"),
                unit="short",
                says="Should go back to 0 again and again.",
            ),
            lines(
                "Lag",
                (f"phasewatch_ingest_lag_seconds{{{HERE}}}", "{{instance}}"),
                unit="s",
                says="Age of the last stored profile when it was stored.",
            ),
            lines(
                "Failed attempts",
                (rate("phasewatch_ingest_failures_total", "kind"), "{{kind}}"),
                unit="cps",
                says="By reason; incomplete ones are normal while files are being written.",
            ),
            lines(
                "Files set aside",
                (f"sum by (kind) (phasewatch_ingest_set_aside_files{{{HERE}}})", "{{kind}}"),
                unit="short",
                says="By reason.",
            ),
            lines(
                "Decoders at work",
                (rate("phasewatch_decode_busy_seconds_total"), "{{instance}}"),
                unit="none",
                says="How many are busy; at ingest.workers they are the limit.",
            ),
            lines(
                "Decoder trouble",
                *((rate(f"phasewatch_decode_{what}_total"), what) for what in ("crashes", "timeouts", "failures")),
                unit="cps",
                says="A second, all chosen daemons.",
            ),
            lines(
                "Seconds per transaction",
                (
                    f"{rate('phasewatch_store_commit_seconds_total')} / ({rate('phasewatch_store_commits_total')} > 0)",
                    "{{instance}}",
                ),
                unit="s",
                says="Grows with a slow disk.",
            ),
            lines(
                "Polls",
                (f"phasewatch_source_poll_seconds{{{HERE}}}", "{{source}}"),
                unit="s",
                says="Length of the last poll, by source.",
            ),
            lines(
                "Queries",
                (rate("phasewatch_query_requests_total", "route, status"), "{{route}} {{status}}"),
                unit="reqps",
                says="By route and status; /metrics among them.",
            ),
            lines(
                "Series",
                (f"scrape_samples_scraped{{{PROCESS}}}", "{{instance}}"),
                unit="short",
                says="Samples of a scrape; bounded by metrics.functions_per_phase.",
            ),
            lines(
                "Functions refused a series",
                (
                    "sum by (training_job, node) "
                    f"(increase(phasewatch_function_series_limit_hits_total{{{HERE}}}[1h]))",
                    "{{training_job}} {{node}}",
                ),
                unit="short",
                says="Added up over choices; above 0 the budget of a phase is used up.",
            ),
            lines(
                "Scrape",
                (f"scrape_duration_seconds{{{PROCESS}}}", "{{instance}}"),
                unit="s",
                says="As Prometheus measures it.",
            ),
            lines(
                "Memory",
                (f"process_resident_memory_bytes{{{PROCESS}}}", "{{instance}}"),
                unit="bytes",
                says="Of the daemon without its decoders.",
            ),
            lines(
                "CPU",
                (f"rate(process_cpu_seconds_total{{{PROCESS}}}[$__rate_interval])", "{{instance}}"),
                unit="none",
                says="Cores, without the decoders.",
            ),
        ),
    )
