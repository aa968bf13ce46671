"""Settings: a table of all of them, and how file, environment and command line become one frozen record.

Every setting has a default, so no file is needed. Later wins: defaults, file, environment, command line. All mistakes
are found in one go and told with their lines.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from monitor.errors import ConfigError
from monitor.logs import LEVELS
from monitor.s3_url import is_wild, parse_s3_url, without_password
from monitor.settings import (
    BUCKET_DEFAULTS,
    QUEUE_DEFAULTS,
    SETTINGS,
    SOURCE_SETTINGS,
    Setting,
    Settings,
    SourceSettings,
)
from monitor.web_config import read_web_config

ENVIRONMENT_PREFIX = "PHASEWATCH_"
NOT_OURS = ("PHASEWATCH_CAPTURE_", "PHASEWATCH_PUSH_", "PHASEWATCH_ORACLE_PYTHON", "PHASEWATCH_TRAINING_PYTHON")
"""Meant for the training job and for `push`, which may share their environment with the daemon, and for the tests."""
LONGEST_SOCKET_PATH = 107
"""Bytes that fit into a unix socket address on Linux, besides the closing zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing that is wrong.

    Attributes:
        where: "FILE:LINE", an environment variable or an option.
    """

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class SettingsError(ConfigError):
    """Some settings are wrong; `mistakes` lists all of them."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))
        self.mistakes = list(mistakes)


@dataclass(slots=True)
class Reader:
    """Collects values by "section.key" and mistakes on the way."""

    values: dict[str, object] = field(default_factory=dict)
    sources: list[dict[str, object]] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)

    def take(self, table: Mapping[str, Setting], key: str, value: object, where: str, into: dict[str, object]) -> None:
        """Check one value and keep it."""
        setting = table.get(key)
        if setting is None:
            self.wrong(where, f"unknown setting {key!r}{suggestion(key, table)}")
            return
        try:
            into[key] = setting.read(value)
        except ValueError as error:
            self.wrong(where, f"{key} = {value!r}: {error}")

    def wrong(self, where: str, message: str) -> None:
        """Note a mistake."""
        self.mistakes.append(Mistake(where=where, message=without_password(message)))


def load_settings(
    path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object] | None = None
) -> Settings:
    """Read the settings.

    Args:
        path: a TOML file, or None.
        environ: variables named PHASEWATCH_SECTION_KEY are taken, PHASEWATCH_JOB for the top-level `job`.
        overrides: "section.key" -> value, from the command line; "source.path" puts one source in the place of all.

    Raises:
        SettingsError: with every mistake.
    """
    reader = Reader()
    if path is not None:
        read_file(reader, path)
    read_environment(reader, environ)
    for key, value in (overrides or {}).items():
        if key == "source.path":
            reader.sources = [{}]
            reader.take(SOURCE_SETTINGS, "path", str(value), "PATH", reader.sources[0])
            check_place(reader, reader.sources[0], "PATH")
        else:
            reader.take(SETTINGS, key, value, f"option for {key}", reader.values)
    check_distinct(reader)
    settings = build_settings(reader, environ)
    if reader.mistakes:
        raise SettingsError(reader.mistakes)
    return settings


def check_config(path: Path, environ: Mapping[str, str]) -> list[Mistake]:
    """Return what is wrong with a file."""
    try:
        load_settings(path, environ)
    except SettingsError as error:
        return error.mistakes
    return []


def read_file(reader: Reader, path: Path) -> None:
    """Take what a TOML file says."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reader.wrong(str(path), f"cannot be read: {error}")
        return
    try:
        document = tomllib.loads(text)
    except RecursionError:
        reader.wrong(str(path), "not TOML: nested too deeply")
        return
    except ValueError as error:
        line = re.search(r"at line (\d+)", str(error))
        reader.wrong(f"{path}:{line[1] if line else text.count(chr(10)) + 1}", f"not TOML: {error}")
        return
    lines = line_index(text)

    def where(*key: object) -> str:
        return f"{path}:{lines.get(key, lines.get(key[:-1], 1))}"

    for section, content in document.items():
        if section == "source" and isinstance(content, list):
            for place, table in enumerate(content):
                read_source(reader, table, partial(where, "source", place))
        elif section == "source":
            reader.wrong(where(section), "each source is a table of its own: write [[source]] with two brackets")
        elif isinstance(content, dict):
            if not any(known.startswith(f"{section}.") for known in SETTINGS):
                sections = {known.split(".")[0]: None for known in SETTINGS if "." in known} | {"source": None}
                reader.wrong(where(section), f"unknown section [{section}]{suggestion(section, sections)}")
                continue
            for key, value in content.items():
                reader.take(SETTINGS, f"{section}.{key}", value, where(section, key), reader.values)
        else:
            reader.take(SETTINGS, section, content, where(section), reader.values)


def read_source(reader: Reader, table: object, where: Callable[[str], str]) -> None:
    """Take one [[source]] table."""
    values: dict[str, object] = {}
    if not isinstance(table, dict):
        reader.wrong(where(""), "a source is a table: [[source]]")
        return
    for key, value in table.items():
        reader.take(SOURCE_SETTINGS, key, value, where(key), values)
    if ("path" in table) == bool(table.get("jobs")):
        reader.wrong(where("type"), "a source needs a path, or jobs in its place")
    check_place(reader, values, where("path" if "path" in table else "jobs"))
    reader.sources.append(values)


def read_environment(reader: Reader, environ: Mapping[str, str]) -> None:
    """Take PHASEWATCH_… variables; one that means nothing is a mistake, since it was meant for something."""
    names = {variable_name(key): key for key in SETTINGS}
    for variable, value in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable.startswith(NOT_OURS):
            continue
        key = names.get(variable)
        if key is None:
            reader.wrong(variable, f"means no setting{suggestion(variable, names)}")
        else:
            reader.take(SETTINGS, key, value, variable, reader.values)


def variable_name(key: str) -> str:
    """Return the environment variable of a setting."""
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


def build_settings(reader: Reader, environ: Mapping[str, str]) -> Settings:
    """Put defaults where nothing was said, and check what hangs together."""
    values = {key: reader.values.get(key, setting.default) for key, setting in SETTINGS.items()}
    state_dir = expanded(reader, "daemon.state_dir", values["daemon.state_dir"] or default_state_dir(environ))
    socket = expanded(reader, "daemon.socket", values["daemon.socket"] or default_socket(environ, state_dir))
    if len(os.fsencode(socket)) > LONGEST_SOCKET_PATH:
        reader.wrong(
            "daemon.socket",
            f"the path {socket} has more than {LONGEST_SOCKET_PATH} bytes, which no unix socket may have: "
            "choose a shorter one, for example below /run",
        )
    if values["log.level"] not in LEVELS:
        reader.wrong("log.level", f"{values['log.level']!r} is none of {', '.join(LEVELS)}")
    web_config_file = None
    if values["daemon.web_config_file"]:
        web_config_file = expanded(reader, "daemon.web_config_file", values["daemon.web_config_file"])
    check_listening(reader, values, web_config_file)
    check_shipping(reader, values)
    job = str(values["job"])
    sources = tuple(build_source(reader, source, job) for source in reader.sources)
    by_section: dict[str, Any] = {key.replace(".", "_"): value for key, value in values.items()}
    paths = {"daemon_state_dir": state_dir, "daemon_socket": socket, "daemon_web_config_file": web_config_file}
    return Settings(**by_section | paths | {"source": sources})


def build_source(reader: Reader, said: Mapping[str, object], job: str) -> SourceSettings:
    """Put defaults where one source says nothing."""
    path = str(said.get("path", ""))
    values: dict[str, Any] = {key: setting.default for key, setting in SOURCE_SETTINGS.items()}
    if is_in_s3(said):
        values |= BUCKET_DEFAULTS | {"type": "s3"} | (QUEUE_DEFAULTS if said.get("sqs") else {})
        path = path.rstrip("/")
    else:
        path = str(expanded(reader, "source.path", path))
    return SourceSettings(**values | dict(said) | {"job": said.get("job") or job, "path": path})


def is_in_s3(said: Mapping[str, object]) -> bool:
    """Tell whether a source is a bucket."""
    return said.get("type") == "s3" or str(said.get("path") or said.get("jobs", "")).startswith("s3://")


def check_place(reader: Reader, said: Mapping[str, object], where: str) -> None:
    """Refuse a place that does not fit the type of its source."""
    path = str(said.get("path") or said.get("jobs", ""))
    if path and is_in_s3(said):
        try:
            wild = is_wild(parse_s3_url(path).prefix)
        except ConfigError as error:
            wild = False
            reader.wrong(where, str(error))
        if said.get("jobs") and not wild:
            reader.wrong(where, f"{path} holds no *: write it as a path, or with a star for the name of the job")
    elif said.get("jobs"):
        reader.wrong(where, "jobs is for buckets: write s3://bucket/training/*/profiler-output")
    elif said.get("sqs"):
        reader.wrong(where, "sqs is for buckets: a folder has no queue")
    if path.startswith("s3://"):
        if said.get("type") == "local":
            reader.wrong(where, f'{path} is in S3: write type = "s3", or leave the type out')


def check_listening(reader: Reader, values: Mapping[str, object], web_config_file: Path | None) -> None:
    """Refuse a web configuration file that cannot be used, and an address that others reach with nothing before it."""
    web_config = None
    if web_config_file is not None:
        try:
            web_config = read_web_config(web_config_file)
        except ConfigError as error:
            reader.wrong("daemon.web_config_file", str(error))
            return
    listen = str(values["daemon.listen"])
    if values["daemon.listen_anywhere"] or is_local(listen) or (web_config is not None and web_config.protects):
        return
    reader.wrong(
        "daemon.listen",
        f"other hosts reach {listen}, and nothing asks them who they are: name users in a daemon.web_config_file, "
        "listen on 127.0.0.1, or say daemon.listen_anywhere = true where the network itself keeps others out",
    )


def is_local(listen: str) -> bool:
    """Tell whether only this host reaches an address; a name other than localhost may mean anything."""
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return host in ("", "localhost") or ip_address(host).is_loopback
    except ValueError:
        return False


def check_shipping(reader: Reader, values: Mapping[str, object]) -> None:
    """Refuse half a [ship], and a target that is no place in a bucket."""
    path, target = str(values["ship.path"]), str(values["ship.to"])
    if bool(path) != bool(target):
        reader.wrong("ship", "shipping needs both: path, a folder, and to, s3://bucket/prefix")
    elif target:
        try:
            parse_s3_url(target)
        except ConfigError as error:
            reader.wrong("ship.to", str(error))


def check_distinct(reader: Reader) -> None:
    """Refuse two sources of one path: every file would be taken for two."""
    paths = [str(source.get("path", "")) for source in reader.sources]
    for path in sorted({path for path in paths if path and paths.count(path) > 1}):
        reader.wrong("source.path", f"{path!r} stands in more than one [[source]]")


def expanded(reader: Reader, key: str, value: object) -> Path:
    """Put the home folder in the place of `~`."""
    try:
        return Path(str(value)).expanduser()
    except RuntimeError as error:
        reader.wrong(key, f"{value!r}: {error}")
        return Path(str(value))


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """Return where state is kept when nothing is said."""
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"], "phasewatch")
    if environ.get("HOME"):
        return Path(environ["HOME"], ".local", "state", "phasewatch")
    return Path("/var/lib/phasewatch")


def default_socket(environ: Mapping[str, str], state_dir: Path) -> Path:
    """Return where the socket is when nothing is said: the user's runtime folder, else the state folder."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "phasewatch", "phasewatch.sock") if runtime else state_dir / "phasewatch.sock"


def suggestion(word: str, known: Mapping[str, object]) -> str:
    """Return "; did you mean …?" where something is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def line_index(text: str) -> dict[tuple[object, ...], int]:
    """Tell the line of each section and key of a TOML text, by (section, key) or ("source", place, key).

    tomllib gives no places; this reads headers and `key =` at the start of lines, which is how settings are written.
    """
    lines: dict[tuple[object, ...], int] = {}
    section: tuple[object, ...] = ()
    for number, line in enumerated_code(text):
        header = re.match(r"\s*\[\[?\s*([A-Za-z0-9_-]+)\s*\]?\]", line)
        key = re.match(r"\s*[\"']?([A-Za-z0-9_-]+)[\"']?(?:\s*\.\s*[\"']?([A-Za-z0-9_-]+)[\"']?)?\s*=", line)
        if header and line.lstrip().startswith("[["):
            place = sum(1 for known in lines if len(known) == 2 and known[0] == header[1] and isinstance(known[1], int))
            section = (header[1], place)
            lines[section] = number
        elif header:
            section = (header[1],)
            lines.setdefault(section, number)
        elif key:
            lines.setdefault((*section, *filter(None, key.groups())), number)
    return lines


def enumerated_code(text: str) -> Iterator[tuple[int, str]]:
    """Number the lines that are not inside a multi-line string."""
    inside = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not inside:
            yield number, line
        for quotes in ('"""', "'''"):
            if inside in ("", quotes) and line.count(quotes) % 2:
                inside = "" if inside else quotes
