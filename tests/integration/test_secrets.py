"""No secret is shown: not in logs, answers, errors or the process list; and what is ours is ours alone."""

from __future__ import annotations

import hashlib
import json
import socket as sockets
import stat
import urllib.error
import urllib.request
from pathlib import Path

import bcrypt
import pytest
from click.testing import CliRunner

from monitor.cli import main
from monitor.errors import ConfigError, RequestFailed
from monitor.s3_url import parse_s3_url, without_password
from monitor.settings import S3Settings
from monitor.sources.s3_client import Bucket, open_s3_client
from monitor.state import close_to_others
from tests.integration.daemons import daemon_child, stop
from tests.integration.test_prometheus import wait_for_page

SECRETS = {
    "key": "AKIASECRETKEYID00000",
    "secret": "s3cr3t/access+key",
    "session": "t0ken0fthesession",
    "url": "hunter2",
}
TOKEN, PASSWORD = "bearer-of-the-test", "password-of-the-test"


def test_a_daemon_shows_none_of_its_secrets(short_tmp_path: Path) -> None:
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    (short_tmp_path / "web.yml").write_text(f"basic_auth_users: {{ann: {hashed}}}\nbearer_tokens: {{x: {digest}}}\n")
    with sockets.socket() as closed:  # bound and not listening: nothing answers there
        closed.bind(("127.0.0.1", 0))
        config = short_tmp_path / "c.toml"
        config.write_text(
            '[log]\nlevel = "debug"\n[daemon]\nlisten_api = true\n[[source]]\npath = "s3://bucket/prefix"\n'
            "poll_interval_seconds = 0.05\n"
        )
        variables = {
            "AWS_ACCESS_KEY_ID": SECRETS["key"],
            "AWS_SECRET_ACCESS_KEY": SECRETS["secret"],
            "AWS_SESSION_TOKEN": SECRETS["session"],
            "AWS_ENDPOINT_URL": f"http://ann:{SECRETS['url']}@127.0.0.1:{closed.getsockname()[1]}",
            "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_MAX_ATTEMPTS": "1",
        }
        arguments = ["-c", str(config), "--web-config-file", str(short_tmp_path / "web.yml")]
        with daemon_child(short_tmp_path, None, *arguments, variables=variables) as (process, client):
            while not any(client.status()["sources"][0]["requests"].values()):
                pass
            shown = [json.dumps(client.status()), wait_for_page(client, "phasewatch_build_info").decode()]
            headers = ("", f"Bearer {TOKEN}", "Basic d3Jvbmc6d3Jvbmc=")
            shown += [ask(client.status()["address"], header) for header in headers]
            shown.append(Path(f"/proc/{process.pid}/cmdline").read_text())
            stop(process)
            assert process.stderr is not None
            log = process.stderr.read().decode()
    assert "bucket" in log
    for text in (*shown, log):
        for secret in (*SECRETS.values(), hashed, digest, TOKEN, PASSWORD):
            assert secret not in text


async def test_an_endpoint_that_is_away_is_told_without_its_password(aws_keys: None) -> None:
    with sockets.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://ann:hunter2@127.0.0.1:{closed.getsockname()[1]}"
        async with open_s3_client(S3Settings(endpoint=endpoint, region="eu-west-1", anonymous=True)) as client:
            with pytest.raises(RequestFailed) as caught:
                await Bucket(client, "bucket").list_page("prefix/")
    assert "endpoint URL" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def ask(address: str, authorization: str) -> str:
    """Ask over TCP; returns all that is answered."""
    request = urllib.request.Request(f"http://{address}/v1/status", headers={"Authorization": authorization})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return f"{answer.headers}{answer.read().decode()}"
    except urllib.error.HTTPError as error:
        with error:
            return str(error.headers) + error.read().decode()


def test_a_password_in_a_url_is_never_repeated(tmp_path: Path) -> None:
    assert without_password("a s3://ann:pw@b/c@d, http://x@y and e@f") == "a s3://…@b/c@d, http://…@y and e@f"
    for text in ("s3://ann:hunter2@bucket/p", "http://ann:hunter2@host/p"):
        with pytest.raises(ConfigError) as caught:
            parse_s3_url(text)
        assert "hunter2" not in str(caught.value)
    arguments = ["ship", str(tmp_path), "s3://bucket/p", "--once", "--endpoint", "http://ann:hunter2@127.0.0.1:9"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "must hold no user or password" in done.output
    assert "hunter2" not in done.output


def test_a_state_folder_from_before_is_closed_to_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    close_to_others(folder, tmp_path / "s.sock")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "had rights 0755; they are 0700 now" in caplog.text


@pytest.mark.parametrize(("rights", "socket"), [(0o755, "s.sock"), (0o1777, "../s.sock")])
def test_a_state_folder_that_others_need_is_left_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rights: int, socket: str
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(rights)
    close_to_others(folder, (folder / socket).resolve())
    assert stat.S_IMODE(folder.stat().st_mode) == rights
    assert f"has rights {rights:04o}: others than its owner reach into it" in caplog.text


def test_a_daemon_s_state_is_its_own(short_tmp_path: Path) -> None:
    (short_tmp_path / "state").mkdir(mode=0o755)
    with daemon_child(short_tmp_path, short_tmp_path / "profiles"):
        for path in (short_tmp_path / "state", *(short_tmp_path / "state").iterdir()):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
