"""The command `phasewatch`: arguments to settings, errors to exit codes. Each verb's work is done elsewhere.

Exit codes: 0 done; 1 a query was refused or nobody answers, or a config file has mistakes; 2 a setting or an
argument is wrong; 3 the store cannot be used.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import anyio
import click

import monitor
from monitor.api.parameters import FORMATS
from monitor.config import check_config, default_socket, default_state_dir, load_settings
from monitor.errors import ConfigError, MonitorError, QueryError, SourceUnavailable, StoreError
from monitor.logs import configure_logging
from monitor.s3_url import parse_s3_url
from monitor.settings import SETTINGS, S3Settings, Settings

EXIT_REFUSED = 1
EXIT_CONFIG = 2
EXIT_STORE = 3
GC_THRESHOLDS = (50_000, 20, 50)
"""The daemon keeps very many small tuples and makes next to no cycles: Python's defaults walk them all the time."""
M_ARENA_MAX = -8
MALLOC_ARENAS = 2
"""Each thread would otherwise keep a heap of its own, which after catching up holds some ten megabytes for nothing."""
SERVICE_SOCKETS = (Path("/run/phasewatch.sock"), Path("/run/phasewatch/phasewatch.sock"))
"""Where the units in systemd/ put the query socket: phasewatch.socket, or phasewatch.service by itself."""

Words = Mapping[str, Any]


class Command(click.Group):
    """Turns the project's errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a verb."""
        try:
            return super().invoke(ctx)
        except* (QueryError, SourceUnavailable) as group:
            leave(group, EXIT_REFUSED)
        except* ConfigError as group:
            leave(group, EXIT_CONFIG)
        except* StoreError as group:
            leave(group, EXIT_STORE)
        return None


def leave(group: BaseExceptionGroup[MonitorError], code: int) -> None:
    """Print what is wrong and end."""
    errors: list[BaseException] = [group]
    while errors:
        error = errors.pop()
        if isinstance(error, BaseExceptionGroup):
            errors.extend(error.exceptions)
        else:
            click.echo(f"phasewatch: {error}", err=True)
    sys.exit(code)


@click.group(cls=Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(monitor.__version__, prog_name="phasewatch")
def main() -> None:
    """Watch the Python profiles of a training job, phase by phase, while it trains.

    \b
    Examples:
      phasewatch demo                                  see it at work on a small training run
      phasewatch run /opt/ml/output/profiler           watch a folder
      phasewatch query job-phases                      what takes the time, by job phase
      phasewatch query step --start 100 --end 120      the same for steps 100 to 120
    """


@main.command()
@click.argument("path", required=False)
@click.option("-c", "--config", "config_file", type=click.Path(path_type=Path), help="TOML file with settings.")
@click.option("--job", help="Name of the training job.")
@click.option("--state-dir", help="Where the store lives.")
@click.option("--socket", help="The query socket.")
@click.option("--listen", metavar="HOST:PORT", help='Where /metrics is served over TCP; "" for nowhere.')
@click.option("--web-config-file", help="TLS, users and tokens for TCP.")
def run(path: str | None, config_file: Path | None, **options: str | None) -> None:
    """Watch PATH, or the sources of the config file, until stopped.

    PATH is the folder that holds framework/, or one above or below it; it may not exist yet. In a bucket it is
    s3://bucket/prefix. SIGHUP reloads the settings, SIGTERM and Ctrl-C stop in order.

    \b
    Examples:
      phasewatch run /opt/ml/output/profiler --job resnet50
      phasewatch run s3://my-bucket/resnet50/profiler-output --job resnet50
      phasewatch run -c /etc/phasewatch/phasewatch.toml
    """
    from monitor.activation import take_listener
    from monitor.daemon import run_daemon
    from monitor.notify import take_notifier
    from monitor.priority import give_way
    from monitor.progress import loading_bar, show_catching_up
    from monitor.service import Surroundings

    def read() -> Settings:
        return load_settings(config_file, os.environ, overrides_of(path, options))

    surroundings = Surroundings(notifier=take_notifier(os.environ), listener=take_listener(os.environ))
    settings = read()
    if not settings.source:
        raise ConfigError("nothing to watch: name a folder, `phasewatch run PATH`, or a config file with a [[source]]")
    configure_logging(settings.log_level, settings.log_format)  # type: ignore[arg-type]
    prepare_memory()
    give_way(nice=settings.daemon_nice, ionice=settings.daemon_ionice)
    faulthandler.enable()  # a watchdog ends the process by SIGABRT: the log then says where each thread was
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the daemon listens to it, it must not end the process
    with loading_bar() as progress:
        anyio.run(
            lambda: run_daemon(
                settings,
                reload_settings=read,
                progress=progress,
                beside_forever=show_catching_up,
                surroundings=surroundings,
            )
        )


@main.command()
@click.option(
    "-c", "--config", "config_file", type=click.Path(path_type=Path), required=True, help="TOML file to check."
)
def check(config_file: Path) -> None:
    """Check a config file and say each mistake with its line.

    \b
    Example:
      phasewatch check -c /etc/phasewatch/phasewatch.toml
    """
    mistakes = check_config(config_file, os.environ)
    for mistake in mistakes:
        click.echo(str(mistake), err=True)
    if mistakes:
        sys.exit(EXIT_REFUSED)
    click.echo(f"{config_file}: no mistakes")


@main.command()
@click.option("--steps", type=click.IntRange(1), help="End by itself after so many training steps.")
@click.option("--profiler", type=click.Choice(["cprofile", "pyinstrument"]), default="cprofile", show_default=True)
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:0", show_default=True, help="Where /metrics is served."
)
@click.option("--delay", type=click.FloatRange(0), default=0.05, show_default=True, help="Seconds between steps.")
def demo(steps: int | None, profiler: str, listen: str, delay: float) -> None:
    """Train a small network, profile it step by step, and watch it.

    Everything lives in a temporary folder and is gone afterwards. In the middle of a run with --steps its data loading
    becomes slow on purpose: watch it appear.

    \b
    Examples:
      phasewatch demo
      phasewatch demo --steps 200
    """
    from monitor.demo import run_demo

    configure_logging("warning", "human")
    anyio.run(lambda: run_demo(steps=steps, profiler=profiler, listen=listen, delay_seconds=delay))


@main.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(1), required=True, help="How many steps, from the next one on.")
@click.option("--node", multiple=True, help="Only this node (repeatable).")
@click.option("--profiler", type=click.Choice(["cprofile", "pyinstrument"]), help="Instead of the job's own choice.")
@click.option(
    "--mode", multiple=True, type=click.Choice(["train", "eval", "predict", "global"]), help="Only this mode."
)
@click.option("--job", help="Only this job; with a daemon.")
@click.option("--wait", type=click.FloatRange(0), default=10.0, show_default=True, help="Seconds for nodes to answer.")
@click.option("--socket", type=click.Path(path_type=Path), help="The daemon's socket.  [default: where `run` puts it]")
def trigger(path: Path | None, **words: Any) -> None:
    """Make a running job profile its next steps.

    PATH is the job's base folder; without it, the daemon is asked about the folders that it watches. Only the owner of
    a folder can ask. Ends with code 1 when no node has answered in time.

    \b
    Examples:
      phasewatch trigger --steps 20
      phasewatch trigger /opt/ml/output/profiler --steps 5 --node 0-algo-1 --profiler pyinstrument
    """
    from monitor.trigger_command import run_trigger

    if not run_trigger(path, words.pop("socket") or find_socket(), **words):
        sys.exit(EXIT_REFUSED)


@main.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("target")
@click.option("--once", is_flag=True, help="End when everything is uploaded.")
@click.option("--delete", is_flag=True, help="Delete files here once the bucket holds the same bytes.")
@click.option("--bytes-per-second", type=click.FloatRange(1), help="Upload at most so fast.")
@click.option("--region", default="", help="Region of the bucket.")
@click.option("--profile", default="", help="Profile of the AWS configuration.")
@click.option("--endpoint", default="", help="URL of an S3-compatible store.")
@click.option("--path-style", is_flag=True, help="Put the bucket into the path of URLs.")
def ship(path: Path, target: str, once: bool, delete: bool, bytes_per_second: float | None, **way: Any) -> None:
    """Upload the finished spans below PATH to TARGET, s3://bucket/prefix, in the same layout.

    What the bucket holds already is passed over, so it may be stopped and started at any time.

    \b
    Examples:
      phasewatch ship /opt/ml/output/profiler s3://my-bucket/resnet50/profiler-output
      phasewatch ship profiles s3://my-bucket/job --once --delete
    """
    from monitor.shipping import Shipper, ship_folder
    from monitor.sources.s3_client import Bucket, open_s3_client

    url = parse_s3_url(target)
    try:
        way["endpoint"] = SETTINGS["ship.endpoint"].read(way["endpoint"])
    except ValueError as error:
        raise ConfigError(f"--endpoint {error}") from None
    configure_logging("info", "auto")

    async def upload() -> None:
        async with open_s3_client(S3Settings(**way)) as client:
            bucket = Bucket(client, url.bucket)
            shipper = Shipper(path, bucket, url, delete=delete, bytes_a_second=bytes_per_second)
            await ship_folder(shipper, once=once, signals=(signal.SIGTERM, signal.SIGINT))
            done = shipper.statistics()
            click.echo(f"uploaded {done.uploaded} files, {done.held} were there, deleted {done.deleted} here", err=True)

    anyio.run(upload)


@main.command()
@click.argument("path", required=False)
@click.option("--gateway", metavar="URL", help="Push to this Pushgateway.")
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Write into this folder of a node exporter's textfile collector.",
)
@click.option("--job", help="Only this job; of a folder, its name.")
@click.option("--instance", default="", help="With a gateway: tells apart hosts that push parts of one job.")
@click.option("--user", default="", envvar="PHASEWATCH_PUSH_USER", help="For a gateway that wants to know.")
@click.option(
    "--password-file", type=click.File(), help="Holds the password.  [default: $PHASEWATCH_PUSH_PASSWORD, else none]"
)
@click.option("--delete", is_flag=True, help="Remove what was pushed.")
@click.option("--socket", type=click.Path(path_type=Path), help="The daemon's socket.  [default: where `run` puts it]")
def push(
    path: str | None,
    gateway: str | None,
    textfile: Path | None,
    job: str | None,
    instance: str,
    user: str,
    password_file: TextIO | None,
    delete: bool,
    socket: Path | None,
) -> None:
    """Push the metrics of jobs that are over before Prometheus scrapes them.

    With PATH the folder is read once and no daemon is needed; without it a running daemon tells all its jobs. Each job
    replaces what it pushed before.

    \b
    Examples:
      phasewatch push /opt/ml/output/profiler --job resnet50 --gateway http://pushgateway:9091
      phasewatch push --textfile /var/lib/prometheus/node-exporter
      phasewatch push --job resnet50 --gateway http://pushgateway:9091 --delete
    """
    from monitor.push_command import run_push
    from monitor.pushing import Gateway, Place, TextfileFolder

    if (gateway is None) == (textfile is None):
        raise ConfigError("say where to push: one of --gateway URL and --textfile FOLDER")
    password = os.environ.get("PHASEWATCH_PUSH_PASSWORD", "") if password_file is None else password_file.read().strip()
    place: Place
    if gateway is not None:
        place = Gateway(url=gateway, instance=instance, user=user, password=password)
    elif textfile is not None:
        place = TextfileFolder(folder=textfile)
    run_push(path, socket or find_socket(), place, job=job, delete=delete, environ=os.environ)


@main.group()
@click.option("--socket", type=click.Path(path_type=Path), help="The daemon's socket.  [default: where `run` puts it]")
@click.pass_context
def query(ctx: click.Context, socket: Path | None) -> None:
    """Ask a running daemon.

    \b
    Examples:
      phasewatch query training-phases --limit 5
      phasewatch query step --start 100 --end 120 --mode train --sort cumulative
      phasewatch query modes --start-mode train --end-mode eval --format csv
      phasewatch query job-phases --job-phase training_loop --format pstats > loop.pstats
    """
    ctx.obj = socket or find_socket()


def prepare_memory() -> None:
    """Set what a process that runs for years needs; a library should not, so it is done here and nowhere else."""
    gc.set_threshold(*GC_THRESHOLDS)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if mallopt is not None:
        mallopt(M_ARENA_MAX, MALLOC_ARENAS)


def find_socket() -> Path:
    """Return where a daemon with default settings listens: this user's, or where there is none, the machine's."""
    settings_socket = os.environ.get("PHASEWATCH_DAEMON_SOCKET")
    if settings_socket:
        return Path(settings_socket)
    own = default_socket(os.environ, default_state_dir(os.environ))
    return next((path for path in (own, *SERVICE_SOCKETS) if may_be_there(path)), own)


def may_be_there(path: Path) -> bool:
    """Tell whether something is there, or hidden from us, so that asking it says why it cannot be asked."""
    try:
        path.lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def overrides_of(path: str | None, options: Mapping[str, str | None]) -> dict[str, object]:
    """Turn the options of `run` into settings."""
    keys = {"job": "job"} | {name: f"daemon.{name}" for name in ("state_dir", "socket", "listen", "web_config_file")}
    overrides: dict[str, object] = {keys[name]: value for name, value in options.items() if value is not None}
    if path is not None:
        overrides["source.path"] = path
    return overrides


def option(name: str, **settings: Any) -> Callable[[Any], Any]:
    """Make an option of a query; its name is the parameter's with dashes."""
    return click.option(f"--{name.replace('_', '-')}", name, **settings)


SCOPE_OPTIONS = [
    option("job", multiple=True, help="Only this job (repeatable)."),
    option("node", multiple=True, help='Only this node (repeatable); "any" is the node of the earliest span.'),
    option("framework", multiple=True, help="Only this framework (repeatable)."),
    option("profiler", type=click.Choice(["cprofile", "pyinstrument"]), help="Which profiler's spans."),
    option("fresh", is_flag=True, default=None, help="Look for new files before answering."),
]
FORMAT_OPTION = option("format", type=click.Choice(["table", *FORMATS]), default="table", show_default=True)
LIST_FORMAT_OPTION = option("format", type=click.Choice(["table", "json"]), default="table", show_default=True)
TABLE_OPTIONS = [
    option(
        "sort", type=click.Choice(["self", "cumulative", "calls", "primitive_calls"]), help="Order of the functions."
    ),
    option("limit", type=click.IntRange(0), help="At most so many functions.  [default: 20 in a table, else all]"),
    option("callers", is_flag=True, default=None, help="Add each function's callers (json, csv)."),
    FORMAT_OPTION,
]
MODE_WORDS = click.Choice(["train", "eval", "predict", "global", "prestepzero", "posthookclose"])
PHASE_WORDS = click.Choice(["start", "stepstart", "forwardpassend", "stepend", "end"])
STEP_OPTIONS = [
    option("start", type=int, required=True, help="First step."),
    option("end", type=int, help="Last step.  [default: the first one]"),
    option("mode", type=MODE_WORDS, help="Mode.  [default: train]"),
    option("start_phase", type=PHASE_WORDS, help="Phase at the first step."),
    option("end_phase", type=PHASE_WORDS, help="Phase at the last step."),
    option(
        "rule", type=click.Choice(["original", "documented"]), help="original: both ends belong; documented: half-open."
    ),
]
TIME_OPTIONS = [
    option("start", type=float, required=True, help="Seconds since the epoch."),
    option("end", type=float, required=True, help="Seconds since the epoch."),
    option("overlap", type=click.Choice(["ends", "any"]), help="any: also spans that cover the whole interval."),
]
MODE_OPTIONS = [
    option("start_mode", type=MODE_WORDS, help="Mode in which the spans start."),
    option("end_mode", type=MODE_WORDS, help="Mode in which the spans end."),
]
JOB_PHASE_OPTION = option(
    "job_phase", type=click.Choice(["initialization", "training_loop", "finalization"]), help="Only this job phase."
)
PAGE_OPTIONS = [
    option("after", type=click.IntRange(0), help="Where the page before ended."),
    option("limit", type=click.IntRange(1), help="At most so many spans.  [default: 1000]"),
]

QUERIES: tuple[tuple[str, str, str, list[Any]], ...] = (
    ("step", "/v1/stats/step", "Functions of a range of steps.", [*STEP_OPTIONS, *SCOPE_OPTIONS, *TABLE_OPTIONS]),
    ("time", "/v1/stats/time", "Functions of a range of time.", [*TIME_OPTIONS, *SCOPE_OPTIONS, *TABLE_OPTIONS]),
    ("modes", "/v1/stats/modes", "Functions between two modes.", [*MODE_OPTIONS, *SCOPE_OPTIONS, *TABLE_OPTIONS]),
    ("pre-step-zero", "/v1/stats/pre-step-zero", "Functions before step zero.", [*SCOPE_OPTIONS, *TABLE_OPTIONS]),
    ("post-hook-close", "/v1/stats/post-hook-close", "Functions at the end.", [*SCOPE_OPTIONS, *TABLE_OPTIONS]),
    (
        "training-phases",
        "/v1/stats/training-phases",
        "Functions by training phase.",
        [*MODE_OPTIONS, *SCOPE_OPTIONS, *TABLE_OPTIONS],
    ),
    (
        "job-phases",
        "/v1/stats/job-phases",
        "Functions by job phase.",
        [JOB_PHASE_OPTION, *SCOPE_OPTIONS, *TABLE_OPTIONS],
    ),
    ("profiles", "/v1/profiles", "Spans by time.", [*PAGE_OPTIONS, *SCOPE_OPTIONS, LIST_FORMAT_OPTION]),
    ("nodes", "/v1/nodes", "Who wrote spans.", [*SCOPE_OPTIONS, LIST_FORMAT_OPTION]),
    ("jobs", "/v1/jobs", "Jobs.", [SCOPE_OPTIONS[-1], LIST_FORMAT_OPTION]),
    ("status", "/v1/status", "How the daemon does.", [LIST_FORMAT_OPTION]),
)


def add_query(name: str, path: str, text: str, options: list[Any]) -> None:
    """Add one verb below `query`."""

    @click.pass_obj
    def ask(socket: Path, /, format: str, **words: Any) -> None:
        from monitor.show import show_answer

        show_answer(socket, name, path, format, {key: value for key, value in words.items() if value not in (None, ())})

    command: Any = ask
    for one in reversed(options):
        command = one(command)
    query.command(name, help=text)(command)


for entry in QUERIES:
    add_query(*entry)
