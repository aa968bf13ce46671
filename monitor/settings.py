"""The table of all settings, with units, defaults and help; documentation and checks are drawn from it. Data only."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ARROW = " => "
"""Between the two halves of a rename."""
SIZE_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        key: "section.name", or a name at the top of the file.
        default: as a user would write it.
        unit: what the number counts; "" for words.
        read: checks a value from a file or a text from the environment; raises ValueError saying what is allowed.
    """

    key: str
    default: object
    unit: str
    help: str
    read: Callable[[object], object]


def number(least: float, most: float, *, whole: bool = False) -> Callable[[object], object]:
    """Read a number in a range."""
    kind = "a whole number" if whole else "a number"

    def read(value: object) -> object:
        try:
            if isinstance(value, bool) or not isinstance(value, (int, float, str)):
                raise ValueError
            result = int(value) if whole and not isinstance(value, float) else float(value)
            if (whole and result != int(result)) or not least <= result <= most:
                raise ValueError
        except (ValueError, OverflowError):
            raise ValueError(f"must be {kind} from {least:g} to {most:g}") from None
        return int(result) if whole else result

    return read


def size(least: int, most: int) -> Callable[[object], object]:
    """Read a number of bytes, which may be written with a unit ("64MiB")."""

    def read(value: object) -> object:
        found = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", str(value)) if not isinstance(value, bool) else None
        if found is None or found[2] not in SIZE_UNITS:
            raise ValueError('must be a number of bytes, or one with a unit such as "64MiB"')
        result = int(found[1]) * SIZE_UNITS[found[2]]
        if not least <= result <= most:
            raise ValueError(f"must be from {least} to {most} bytes")
        return result

    return read


def word(value: object) -> object:
    """Read any text."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("must be a text (UTF-8) without control characters")
    return value


def name(value: object) -> object:
    """Read a name that is not empty."""
    if not word(value):
        raise ValueError("must not be empty")
    return value


def one_of(*words: str) -> Callable[[object], object]:
    """Read one of some words."""

    def read(value: object) -> object:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return value

    return read


def switch(value: object) -> object:
    """Read true or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false", "1", "0", "yes", "no"):
        return value.lower() in ("true", "1", "yes")
    raise ValueError("must be true or false")


def mode(value: object) -> object:
    """Read access rights in octal."""
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", value):
        raise ValueError('must be access rights in octal, such as "0660"')
    return value


def address(value: object) -> object:
    """Read HOST:PORT, or nothing."""
    if value == "":
        return value
    found = re.fullmatch(r"(?:\[[0-9a-fA-F:]+\]|[^\s:]+):(\d{1,5})", value) if isinstance(value, str) else None
    if found is None or int(found[1]) > 65535:
        raise ValueError('must be HOST:PORT such as "127.0.0.1:9753", or "" for none')
    return value


def web_address(value: object) -> object:
    """Read a URL, or nothing."""
    if isinstance(value, str) and re.match(r"[a-z0-9]+://[^/]*@", value):
        raise ValueError("must hold no user or password: credentials come from the environment or a profile")
    if value == "" or (isinstance(value, str) and re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", value)):
        return value
    raise ValueError('must be a URL such as "https://minio.example:9000", or "" for AWS')


def words(value: object) -> object:
    """Read a list of texts, also as TOML in one text ('["a", "b"]'), as the environment has it."""
    if isinstance(value, str):
        try:
            value = tomllib.loads(f"list = {value}")["list"]
        except ValueError:
            raise ValueError('must be a list of texts such as ["a", "b"]') from None
    if not isinstance(value, list):
        raise ValueError('must be a list of texts such as ["a", "b"]')
    for place, entry in enumerate(value, start=1):
        if not isinstance(entry, str) or not entry.isprintable() or not entry:
            raise ValueError(f"entry {place}, {entry!r}, must be a text without control characters")
    return tuple(value)


def patterns(value: object) -> object:
    """Read a list of regular expressions."""
    entries: tuple[str, ...] = words(value)  # type: ignore[assignment]
    for place, entry in enumerate(entries, start=1):
        check_pattern(place, entry, entry)
    return entries


def renames(value: object) -> object:
    """Read a list of "PATTERN => REPLACEMENT"."""
    entries: tuple[str, ...] = words(value)  # type: ignore[assignment]
    for place, entry in enumerate(entries, start=1):
        pattern, arrow, new = entry.partition(ARROW)
        if not arrow or not pattern:
            raise ValueError(f'entry {place}, {entry!r}, must be "PATTERN => REPLACEMENT"')
        check_pattern(place, entry, pattern, new)
    return entries


def check_pattern(place: int, entry: str, pattern: str, new: str = "") -> None:
    """Refuse what is no regular expression, or no replacement for what it finds."""
    try:
        re.compile(pattern).sub(new, "")
    except (re.error, IndexError, RecursionError, OverflowError) as error:
        raise ValueError(f"entry {place}, {entry!r}, is no regular expression of Python: {error}") from None


def table(*settings: Setting) -> dict[str, Setting]:
    """Arrange settings by key."""
    return {setting.key: setting for setting in settings}


def setting(key: str, default: object, unit: str, read: Callable[[object], object], text: str) -> Setting:
    """Describe one setting."""
    return Setting(key=key, default=default, unit=unit, read=read, help=text)


SETTINGS = table(
    setting("job", "training", "", name, "Name of the training job, for sources that name none."),
    setting(
        "daemon.state_dir",
        "",
        "path",
        word,
        "Where the store lives. Default: $XDG_STATE_HOME/phasewatch, else ~/.local/state/phasewatch.",
    ),
    setting(
        "daemon.socket",
        "",
        "path",
        word,
        "The query socket. Default: $XDG_RUNTIME_DIR/phasewatch/phasewatch.sock, "
        "else phasewatch.sock in the state folder.",
    ),
    setting("daemon.socket_mode", "0660", "octal", mode, "Access rights of the socket."),
    setting("daemon.socket_group", "", "", word, "Group of the socket, a name or number. Default: the daemon's own."),
    setting(
        "daemon.socket_users",
        (),
        "",
        words,
        "Users who may ask on the socket, names or numbers, besides root and the daemon's own. "
        "Default: all whom its rights let in.",
    ),
    setting(
        "daemon.listen", "127.0.0.1:9753", "host:port", address, 'Where /metrics is served over TCP; "" for nowhere.'
    ),
    setting(
        "daemon.listen_anywhere",
        False,
        "",
        switch,
        "Listen on an address that other hosts reach although nothing asks them who they are.",
    ),
    setting("daemon.listen_api", False, "", switch, "Serve /v1 over TCP too."),
    setting(
        "daemon.web_config_file",
        "",
        "path",
        word,
        "TLS, users and tokens for TCP, in the web configuration format of Prometheus's exporters.",
    ),
    setting(
        "daemon.nice",
        5,
        "niceness",
        number(0, 19, whole=True),
        "The daemon runs at this niceness at least, so that the job beside it comes first; decoders at 5 more.",
    ),
    setting(
        "daemon.ionice",
        "lowest",
        "",
        one_of("none", "lowest", "idle"),
        "Class of its reads and writes: lowest is best-effort 7, idle waits for an idle disk, none leaves it.",
    ),
    setting("ingest.workers", 2, "processes", number(1, 64, whole=True), "Decoder processes."),
    setting("ingest.worker_memory_bytes", 2**30, "bytes", size(2**28, 2**40), "Address space of one decoder process."),
    setting("ingest.file_deadline_seconds", 10.0, "seconds", number(0.1, 3600), "Time for decoding one file."),
    setting("ingest.max_file_bytes", 64 * 2**20, "bytes", size(1, 2**31 - 1), "Larger files are set aside unread."),
    setting(
        "ingest.broken_after_seconds",
        30.0,
        "seconds",
        number(0.1, 86400),
        "A file that cannot be decoded is set aside when it has not changed for so long.",
    ),
    setting(
        "ingest.recheck_seconds",
        30.0,
        "seconds",
        number(0.1, 86400),
        "How often files that were set aside are looked at for changes.",
    ),
    setting("ingest.batch_files", 1000, "files", number(1, 10_000, whole=True), "Most files in one transaction."),
    setting(
        "ingest.linger_seconds",
        0.05,
        "seconds",
        number(0, 10),
        "Least time between two batches while files trickle in; the first one after a pause never waits.",
    ),
    setting(
        "ingest.backlog_files",
        5000,
        "files",
        number(1, 10**6, whole=True),
        "Files found that wait for a decoder before the sources are made to wait; none is dropped.",
    ),
    setting("store.memory_bytes", 64 * 2**20, "bytes", size(2**26, 2**40), "Memory for the database's buffers."),
    setting(
        "store.retention_days",
        0.0,
        "days",
        number(0, 36500),
        "Rows of older spans are dropped, their totals stay; 0 keeps all.",
    ),
    setting(
        "store.retention_spans",
        0,
        "spans",
        number(0, 2**31 - 1, whole=True),
        "Rows of at most so many spans are kept, their totals stay; 0 keeps all.",
    ),
    setting(
        "store.retention_interval_seconds",
        60.0,
        "seconds",
        number(0.1, 86400),
        "How often rows past retention are dropped.",
    ),
    setting(
        "metrics.functions_per_phase",
        50,
        "functions",
        number(1, 10_000, whole=True),
        "Functions of each training phase of each node that are series of their own; the rest is (other).",
    ),
    setting(
        "metrics.packages",
        (),
        "names",
        words,
        "Only functions of these packages may be series, as phasewatch_package_self_seconds_total names them "
        '(["application code"]); the rest is (other). [] for all.',
    ),
    setting("metrics.include", (), "patterns", patterns, "Only functions that one of these fits may be series."),
    setting("metrics.exclude", (), "patterns", patterns, "Functions that one of these fits are never series."),
    setting(
        "metrics.rename",
        (),
        "patterns",
        renames,
        '"PATTERN => REPLACEMENT", one after the other; functions of one name then are one series. '
        "One without a name is (other).",
    ),
    setting(
        "metrics.pinned", (), "patterns", patterns, "Functions that are series before all others, within the budget."
    ),
    setting(
        "metrics.refresh_seconds", 2.0, "seconds", number(0.1, 3600), "Least time between two renderings of /metrics."
    ),
    setting(
        "metrics.keep_ended_seconds",
        3600.0,
        "seconds",
        number(0, 1e9),
        "The series of a job that has closed stay so long after its last profile; 0 keeps them for ever.",
    ),
    setting(
        "metrics.keep_silent_seconds",
        86400.0,
        "seconds",
        number(0, 1e9),
        "The series of a job that has fallen silent without closing stay so long; 0 keeps them for ever.",
    ),
    setting(
        "metrics.target",
        "",
        "host:port",
        address,
        "Where /sd says that Prometheus finds /metrics. Default: the address at which it was asked.",
    ),
    setting(
        "query.max_connections",
        256,
        "connections",
        number(1, 100_000, whole=True),
        "Connections open at the same time, on the socket and over TCP each; more are refused.",
    ),
    setting("query.max_concurrent", 8, "queries", number(1, 1000, whole=True), "Queries answered at the same time."),
    setting("query.timeout_seconds", 30.0, "seconds", number(0.1, 3600), "Time for one query."),
    setting(
        "query.watch_events",
        1000,
        "events",
        number(1, 10**6, whole=True),
        "Events kept for a slow reader of /v1/watch before the oldest are dropped.",
    ),
    setting("ship.path", "", "path", word, 'Folder whose finished spans are uploaded; "" for none.'),
    setting("ship.to", "", "URL", word, "Where they are uploaded to: s3://bucket/prefix."),
    setting(
        "ship.delete",
        False,
        "",
        switch,
        "Delete files here once the bucket holds the same bytes and, where a source watches them, they are stored.",
    ),
    setting("ship.bytes_per_second", 0.0, "bytes/s", number(0, 1e12), "Upload at most so fast; 0 for no limit."),
    setting("ship.region", "", "", word, "Region of the bucket. Default: that of the profile or the environment."),
    setting("ship.profile", "", "", word, "Profile of the AWS configuration, which may assume a role."),
    setting("ship.endpoint", "", "URL", web_address, "Where an S3-compatible store is. Default: AWS."),
    setting("ship.path_style", False, "", switch, "Put the bucket into the path of URLs, as some stores need it."),
    setting("log.level", "info", "", one_of("debug", "info", "warning", "error"), "Least level that is logged."),
    setting(
        "log.format",
        "auto",
        "",
        one_of("auto", "human", "json"),
        "human on a terminal and json elsewhere, or always one.",
    ),
    setting(
        "log.interval_seconds", 10.0, "seconds", number(1, 86400), "How often progress is logged while there is some."
    ),
)

SOURCE_SETTINGS = table(
    setting("type", "local", "", one_of("local", "s3"), 'Kind of source. Default: "s3" where the path is s3://….'),
    setting(
        "path",
        "",
        "path",
        name,
        "The folder that holds framework/, or one above or below it; or s3://bucket/prefix.",
    ),
    setting(
        "jobs",
        "",
        "path",
        word,
        "In place of a path: a pattern such as s3://bucket/training/*/profiler-output. Each prefix that fits is a job "
        "named as the part that the star stands for; new ones are looked for at every third poll.",
    ),
    setting("job", "", "", name, "Name of the training job. Default: the job at the top of the file."),
    setting(
        "poll_interval_seconds",
        1.0,
        "seconds",
        number(0.05, 3600),
        "Between two looks for new spans. In a bucket 10 unless it is said.",
    ),
    setting("events", True, "", switch, "Use file-system events besides polling."),
    setting(
        "full_scan_seconds",
        60.0,
        "seconds",
        number(1, 86400),
        "Least time between two scans that trust no modification time. In a bucket 3600 unless it is said.",
    ),
    setting("region", "", "", word, "Region of the bucket. Default: that of the profile or the environment."),
    setting("profile", "", "", word, "Profile of the AWS configuration, which may assume a role."),
    setting("endpoint", "", "URL", web_address, "Where an S3-compatible store is. Default: AWS."),
    setting("path_style", False, "", switch, "Put the bucket into the path of URLs, as some stores need it."),
    setting("anonymous", False, "", switch, "Sign no request: for public buckets."),
    setting(
        "sqs",
        "",
        "URL",
        web_address,
        "Queue that gets the bucket's events; looks are 60 s apart then, unless it is said.",
    ),
    setting("requester_pays", False, "", switch, "Agree to pay for the requests to another's bucket."),
)

BUCKET_DEFAULTS: dict[str, object] = {"poll_interval_seconds": 10.0, "full_scan_seconds": 3600.0}
"""Where a look costs money, other defaults hold."""
QUEUE_DEFAULTS: dict[str, object] = {"poll_interval_seconds": 60.0}
"""Where a queue tells what is new, looking is only for what the queue lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """How S3 is reached; sources with equal ones share a client. "" leaves it to the standard chain."""

    region: str = ""
    profile: str = ""
    endpoint: str = ""
    path_style: bool = False
    anonymous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """One [[source]]; see SOURCE_SETTINGS."""

    type: str
    path: str
    job: str
    poll_interval_seconds: float
    events: bool
    full_scan_seconds: float
    region: str = ""
    profile: str = ""
    endpoint: str = ""
    path_style: bool = False
    anonymous: bool = False
    requester_pays: bool = False
    sqs: str = ""
    jobs: str = ""

    @property
    def s3(self) -> S3Settings:
        """How the bucket is reached."""
        return S3Settings(
            region=self.region,
            profile=self.profile,
            endpoint=self.endpoint,
            path_style=self.path_style,
            anonymous=self.anonymous,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, `section_name`; see SETTINGS."""

    job: str
    source: tuple[SourceSettings, ...]
    daemon_state_dir: Path
    daemon_socket: Path
    daemon_socket_mode: str
    daemon_socket_group: str
    daemon_socket_users: tuple[str, ...]
    daemon_listen: str
    daemon_listen_anywhere: bool
    daemon_listen_api: bool
    daemon_web_config_file: Path | None
    daemon_nice: int
    daemon_ionice: str
    ingest_workers: int
    ingest_worker_memory_bytes: int
    ingest_file_deadline_seconds: float
    ingest_max_file_bytes: int
    ingest_broken_after_seconds: float
    ingest_recheck_seconds: float
    ingest_batch_files: int
    ingest_linger_seconds: float
    ingest_backlog_files: int
    store_memory_bytes: int
    store_retention_days: float
    store_retention_spans: int
    store_retention_interval_seconds: float
    metrics_functions_per_phase: int
    metrics_packages: tuple[str, ...]
    metrics_include: tuple[str, ...]
    metrics_exclude: tuple[str, ...]
    metrics_rename: tuple[str, ...]
    metrics_pinned: tuple[str, ...]
    metrics_refresh_seconds: float
    metrics_keep_ended_seconds: float
    metrics_keep_silent_seconds: float
    metrics_target: str
    query_max_connections: int
    query_max_concurrent: int
    query_timeout_seconds: float
    query_watch_events: int
    log_level: str
    log_format: str
    log_interval_seconds: float
    ship_path: str
    ship_to: str
    ship_delete: bool
    ship_bytes_per_second: float
    ship_region: str
    ship_profile: str
    ship_endpoint: str
    ship_path_style: bool

    @property
    def ship_s3(self) -> S3Settings:
        """How the bucket that is shipped to is reached."""
        return S3Settings(
            region=self.ship_region,
            profile=self.ship_profile,
            endpoint=self.ship_endpoint,
            path_style=self.ship_path_style,
        )
