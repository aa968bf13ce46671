"""Settings: defaults, who overrides whom, and every mistake at once with its line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from monitor.config import SettingsError, check_config, default_state_dir, line_index, load_settings
from monitor.settings import SETTINGS, SOURCE_SETTINGS, S3Settings, Settings

ANNOTATED = Path(__file__).parents[1] / "config" / "phasewatch.toml"
HOME = {"HOME": "/home/ada"}


def written(folder: Path, text: str) -> Path:
    path = folder / "c.toml"
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(folder: Path, text: str) -> list[tuple[int, str]]:
    """Return what is wrong with a text, as (line, message)."""
    found = check_config(written(folder, text), HOME)
    return [(int(mistake.where.rsplit(":", 1)[1]), mistake.message) for mistake in found]


def uncommented(text: str) -> str:
    """Switch on every setting that is commented out."""
    return re.sub(r"(?m)^# (?=\w+ = |\[\[source\]\]$)", "", text)


def test_no_file_is_needed() -> None:
    settings = load_settings(None, HOME)
    assert settings.job == "training"
    assert settings.daemon_state_dir == Path("/home/ada/.local/state/phasewatch")
    assert settings.daemon_socket == settings.daemon_state_dir / "phasewatch.sock"
    assert settings.source == ()


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        load_settings(None, HOME).job = "other"  # type: ignore[misc]


def test_the_record_has_a_field_for_every_setting() -> None:
    derived = {key.replace(".", "_") for key in SETTINGS} | {"source"}
    assert set(Settings.__dataclass_fields__) == derived


def test_the_annotated_file_says_the_defaults() -> None:
    assert load_settings(ANNOTATED, HOME) == load_settings(None, HOME)


def test_the_annotated_file_with_every_line_on_says_the_defaults_too(tmp_path: Path) -> None:
    path = written(tmp_path, uncommented(ANNOTATED.read_text(encoding="utf-8")))
    settings = load_settings(path, HOME)
    plain = load_settings(None, HOME, {"source.path": "/opt/ml/output/profiler"})
    assert settings == plain


def test_the_annotated_file_names_every_setting() -> None:
    lines = line_index(uncommented(ANNOTATED.read_text(encoding="utf-8")))
    named = {".".join(str(part) for part in key) for key in lines}
    assert named >= set(SETTINGS)
    assert named >= {f"source.0.{key}" for key in SOURCE_SETTINGS}


def test_what_is_meant_for_the_training_job_is_passed_over() -> None:
    settings = load_settings(None, HOME | {"PHASEWATCH_CAPTURE_EVERY": "10", "PHASEWATCH_CAPTURE_BASE": "/p"})
    assert settings == load_settings(None, HOME)


def test_environment_overrides_the_file_and_options_override_both(tmp_path: Path) -> None:
    path = written(tmp_path, "[ingest]\nworkers = 3\nbatch_files = 3\nrecheck_seconds = 3\n")
    environ = HOME | {"PHASEWATCH_INGEST_WORKERS": "4", "PHASEWATCH_INGEST_BATCH_FILES": "4"}
    settings = load_settings(path, environ, {"ingest.workers": 5})
    assert (settings.ingest_workers, settings.ingest_batch_files, settings.ingest_recheck_seconds) == (5, 4, 3)


def test_a_path_on_the_command_line_replaces_all_sources(tmp_path: Path) -> None:
    path = written(tmp_path, '[[source]]\npath = "/a"\n[[source]]\npath = "/b"\njob = "b"\n')
    assert [(source.path, source.job) for source in load_settings(path, HOME).source] == [
        ("/a", "training"),
        ("/b", "b"),
    ]
    assert [source.path for source in load_settings(path, HOME, {"source.path": "/c"}).source] == ["/c"]


def test_all_mistakes_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    text = (
        "[daemon]\n"
        'listn = ""\n'
        "# [ingest]\n"
        "[ingest]\n"
        "\n"
        "workers = 0\n"
        "batch_files = true\n"
        "[[source]]\n"
        'path = "/a"\n'
        "[[source]]\n"
        'pth = "/b"\n'
        "[stor]\n"
        "memory_bytes = 1\n"
    )
    assert mistakes(tmp_path, text) == [
        (2, "unknown setting 'daemon.listn'; did you mean 'daemon.listen'?"),
        (6, "ingest.workers = 0: must be a whole number from 1 to 64"),
        (7, "ingest.batch_files = True: must be a whole number from 1 to 10000"),
        (11, "unknown setting 'pth'; did you mean 'path'?"),
        (10, "a source needs a path, or jobs in its place"),
        (12, "unknown section [stor]; did you mean 'store'?"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '\n\ndaemon.listen = "x"\n',
        '\n[daemon]\nlisten = "x"\n',
        'job = """\n"""\ndaemon . "listen" = "x"\n'.replace('"""\n"""', '"j"\n'),
        '\n\ndaemon = { listen = "x" }\n',
    ],
)
def test_a_key_is_found_however_it_is_written(tmp_path: Path, text: str) -> None:
    assert [line for line, _ in mistakes(tmp_path, text)] == [3]


def test_lines_inside_long_strings_are_no_keys() -> None:
    assert line_index('a = """\nb = 1\n[c]\n"""\nd = 1\n') == {("a",): 1, ("d",): 5}


@pytest.mark.parametrize("text", ["[daemon]\nlisten = \n", "[daemon]\n[daemon]\n"])
def test_what_is_not_toml_is_told_with_its_line(tmp_path: Path, text: str) -> None:
    ((line, message),) = mistakes(tmp_path, text)
    assert line == 2
    assert message.startswith("not TOML: ")


def test_single_brackets_around_source_are_explained(tmp_path: Path) -> None:
    ((line, message),) = mistakes(tmp_path, '\n[source]\npath = "/a"\n')
    assert line == 2
    assert "[[source]]" in message


@pytest.mark.parametrize("value", ["inf", "nan", "-1", "1.5", '""', "[1]", "{}", "true", "1e400"])
def test_what_is_no_whole_number_is_a_mistake_and_never_a_crash(tmp_path: Path, value: str) -> None:
    ((line, message),) = mistakes(tmp_path, f"[ingest]\nworkers = {value}\n")
    assert line == 2
    assert message.startswith("ingest.workers = ")


@pytest.mark.parametrize(("text", "size"), [('"1MiB"', 2**20), ('"2 kB"', 2000), ("4096", 4096)])
def test_sizes_may_have_units(tmp_path: Path, text: str, size: int) -> None:
    path = written(tmp_path, f"[ingest]\nmax_file_bytes = {text}\n")
    assert load_settings(path, HOME).ingest_max_file_bytes == size


def test_a_path_in_s3_makes_an_s3_source_with_its_own_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, '[[source]]\npath = "s3://bucket/a/b/"\n[[source]]\npath = "/x"\n')
    bucket, folder = load_settings(path, HOME).source
    assert (bucket.type, bucket.path) == ("s3", "s3://bucket/a/b")
    assert (bucket.poll_interval_seconds, bucket.full_scan_seconds) == (10, 3600)
    assert (folder.type, folder.path, folder.poll_interval_seconds) == ("local", "/x", 1)


def test_with_a_queue_looks_are_rare(tmp_path: Path) -> None:
    path = written(tmp_path, '[[source]]\npath = "s3://bucket"\nsqs = "https://sqs.eu-west-1.amazonaws.com/1/q"\n')
    (source,) = load_settings(path, HOME).source
    assert (source.poll_interval_seconds, source.sqs) == (60, "https://sqs.eu-west-1.amazonaws.com/1/q")


def test_how_a_bucket_is_reached_may_be_said(tmp_path: Path) -> None:
    text = (
        '[[source]]\ntype = "s3"\npath = "s3://bucket"\nregion = "eu-west-1"\nprofile = "p"\n'
        'endpoint = "http://127.0.0.1:9"\npath_style = true\nanonymous = true\npoll_interval_seconds = 2\n'
    )
    (source,) = load_settings(written(tmp_path, text), HOME).source
    assert source.s3 == S3Settings(
        region="eu-west-1", profile="p", endpoint="http://127.0.0.1:9", path_style=True, anonymous=True
    )
    assert source.poll_interval_seconds == 2


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ('type = "s3"\npath = "/a"', "'/a' is no place in S3: write s3://bucket/prefix"),
        ('type = "local"\npath = "s3://bucket/x"', 's3://bucket/x is in S3: write type = "s3", or leave the type out'),
        ('path = "s3://"', "names no bucket"),
        ('path = "/x"\nsqs = "https://sqs.eu-west-1.amazonaws.com/1/q"', "sqs is for buckets: a folder has no queue"),
        ('path = "s3://bucket/x"\nendpoint = "localhost:9000"', "must be a URL such as"),
    ],
)
def test_what_is_wrong_with_a_place_in_s3_is_told(lines: str, complaint: str, tmp_path: Path) -> None:
    assert any(complaint in message for _, message in mistakes(tmp_path, f"[[source]]\n{lines}\n"))


def test_a_variable_that_means_nothing_is_a_mistake() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, HOME | {"PHASEWATCH_INGEST_WORKER": "4"})
    (mistake,) = caught.value.mistakes
    assert mistake.where == "PHASEWATCH_INGEST_WORKER"
    assert mistake.message == "means no setting; did you mean 'PHASEWATCH_INGEST_WORKERS'?"


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    (mistake,) = check_config(tmp_path / "none.toml", HOME)
    assert "cannot be read" in mistake.message


def test_a_socket_path_may_have_107_bytes_and_no_more() -> None:
    longest = "/" + "é" * 53
    assert str(load_settings(None, HOME, {"daemon.socket": longest}).daemon_socket) == longest
    with pytest.raises(SettingsError, match=r"more than 107 bytes.*choose a shorter one"):
        load_settings(None, HOME, {"daemon.socket": longest + "a"})


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/phasewatch"),
        ({"XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/phasewatch"),
        ({}, "/var/lib/phasewatch"),
    ],
)
def test_state_has_a_place_of_its_own(environ: dict[str, str], folder: str) -> None:
    assert default_state_dir(environ) == Path(folder)


def test_the_socket_is_in_the_runtime_folder_where_there_is_one() -> None:
    settings = load_settings(None, HOME | {"XDG_RUNTIME_DIR": "/run/user/1"})
    assert settings.daemon_socket == Path("/run/user/1/phasewatch/phasewatch.sock")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("x = " + "[" * 20_000, "nested too deeply"),
        ("x = " + "{a=" * 3_000, "nested too deeply"),
        ("[ingest]\nworkers = " + "9" * 5_000, "not TOML"),
        ('[[source]]\npath = "~nobody_of_that_name/x"', "source.path"),
        ('[daemon]\nstate_dir = "~nobody_of_that_name/x"', "daemon.state_dir"),
        ('[[source]]\npath = "/x"\n[[source]]\npath = "/x"', "more than one [[source]]"),
    ],
)
def test_odd_files_are_mistakes_and_no_crash(text: str, mistake: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    assert any(mistake in str(found) for found in check_config(path, HOME))


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('[[source]]\njob = "a"\n', 1, "needs a path, or jobs"),
        ('[[source]]\npath = "/a"\njobs = "s3://bucket/*"\n', 1, "needs a path, or jobs"),
        ('[[source]]\njobs = "/data/*"\n', 2, "jobs is for buckets"),
        ('[[source]]\njobs = "s3://bucket/a/b"\n', 2, "holds no \\*"),
        ('[[source]]\njobs = "s3://bu*/a"\n', 2, "names no bucket"),
    ],
)
def test_a_pattern_of_jobs_is_checked(tmp_path: Path, text: str, line: int, message: str) -> None:
    found = mistakes(tmp_path, text)
    assert any(re.search(message, told) for _, told in found), found
    assert line in [number for number, _ in found]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[ship]\npath = "/a"\n', "needs both"),
        ('[ship]\nto = "s3://bucket/a"\n', "needs both"),
        ('[ship]\npath = "/a"\nto = "bucket/a"\n', "no place in S3"),
    ],
)
def test_half_a_shipment_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(written(tmp_path, text), HOME)


@pytest.mark.parametrize("path", [os.fsdecode(b"/data/\xff"), "/data/a\nb", ""])
def test_a_path_on_the_command_line_is_checked_as_one_in_a_file(path: str) -> None:
    with pytest.raises(SettingsError, match=r"PATH: path = .*must"):
        load_settings(None, HOME, {"source.path": path})


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0", "127.9.9.9:1", "[::1]:9753", "localhost:9753"])
def test_an_address_of_this_host_alone_needs_nothing(listen: str) -> None:
    assert load_settings(None, HOME, {"daemon.listen": listen}).daemon_listen == listen


@pytest.mark.parametrize("listen", ["0.0.0.0:9753", "[::]:9753", "10.1.2.3:9753", "node7:9753", "127.0.0.1.example:1"])
def test_an_address_that_others_reach_is_refused_unless_they_are_asked_or_it_is_meant(
    tmp_path: Path, listen: str
) -> None:
    text = f'[daemon]\nlisten = "{listen}"\n'
    (mistake,) = check_config(written(tmp_path, text), HOME)
    assert mistake.message.startswith(f"other hosts reach {listen}, and nothing asks them who they are")
    assert check_config(written(tmp_path, text + "listen_anywhere = true\n"), HOME) == []
    web = tmp_path / "web.yml"
    with_file = f'{text}web_config_file = "{web}"\n'
    web.write_text("http_server_config: {http2: true}\n")
    assert check_config(written(tmp_path, with_file), HOME) == [mistake]
    web.write_text(f"bearer_tokens: {{prometheus: {'a' * 64}}}\n")
    assert check_config(written(tmp_path, with_file), HOME) == []


def test_a_web_configuration_file_is_checked_too(tmp_path: Path) -> None:
    web = tmp_path / "web.yml"
    web.write_text("basic_auth_user: {}\n")
    (mistake,) = check_config(written(tmp_path, f'[daemon]\nweb_config_file = "{web}"\n'), HOME)
    assert (mistake.where, mistake.message) == (
        "daemon.web_config_file",
        f"{web}: Object contains unknown field `basic_auth_user`",
    )


@pytest.mark.parametrize("key", ["endpoint", "sqs", "path", "jobs"])
def test_a_password_in_a_url_is_refused_and_not_told(tmp_path: Path, key: str) -> None:
    url = "s3://ann:hunter2@bucket/p" if key in ("path", "jobs") else "https://ann:hunter2@minio:9000"
    other = "" if key in ("path", "jobs") else 'path = "s3://bucket/p"\n'
    found = check_config(written(tmp_path, f'[[source]]\n{other}{key} = "{url}"\n'), HOME)
    assert found
    assert "hunter2" not in str(found)


def test_lists_are_read_from_the_file_and_as_toml_from_the_environment(tmp_path: Path) -> None:
    path = written(tmp_path, "[metrics]\npackages = ['application code']\nrename = ['^v\\d+/ => ']\nexclude = ['a']\n")
    settings = load_settings(path, HOME | {"PHASEWATCH_METRICS_EXCLUDE": "['b', \"c\"]"})
    assert settings.metrics_packages == ("application code",)
    assert settings.metrics_rename == (r"^v\d+/ => ",)
    assert settings.metrics_exclude == ("b", "c")
    assert settings.metrics_pinned == ()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("include = ['a', '(']", "entry 2, '(', is no regular expression of Python: missing )"),
        ("rename = ['a']", "entry 1, 'a', must be \"PATTERN => REPLACEMENT\""),
        (r"rename = ['a => b', 'a => \2']", r"entry 2, 'a => \\2', is no regular expression of Python: invalid group"),
        (r"rename = ['a => \g<b>']", "is no regular expression of Python: unknown group name 'b'"),
        ("pinned = [1]", "entry 1, 1, must be a text"),
        ("pinned = ['']", "entry 1, '', must be a text"),
        ("packages = 'torch'", "must be a list of texts"),
        ("packages = 3", "must be a list of texts"),
    ],
)
def test_a_list_with_a_mistake_names_the_entry(tmp_path: Path, line: str, said: str) -> None:
    ((at, message),) = mistakes(tmp_path, f"[metrics]\n{line}\n")
    assert at == 2
    assert message.startswith(f"metrics.{line.split()[0]} = ")
    assert said in message
