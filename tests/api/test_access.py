"""Who may ask: users of the socket, and over TCP passwords, tokens and certificates, each over real connections."""

from __future__ import annotations

import base64
import grp
import hashlib
import json
import logging
import os
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import bcrypt
import pytest
import trustme

from monitor.api import access as access_module
from monitor.api.access import SocketAccess, allowed_users, group_number, is_mapped
from monitor.api.server import Server
from monitor.errors import AccessRefused, ConfigError
from tests.api.test_server import DEADLINE_SECONDS, FakeEngine, Reply, ask, error_of, parsed, serving

PASSWORD, TOKEN = "correct horse", "c0ffee-token"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
USERS = f"basic_auth_users:\n  ann: {HASH}\n"
TOKENS = f"bearer_tokens:\n  prometheus: {hashlib.sha256(TOKEN.encode()).hexdigest()}\n"
STRANGER = 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def web_file(folder: Path, text: str) -> Path:
    path = folder / "web.yml"
    path.write_text(text, encoding="utf-8")
    return path


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


async def ask_as(server: Server, target: str, authorization: str = "", context: ssl.SSLContext | None = None) -> Reply:
    """Ask over TCP with a header, and over TLS where a context is given."""
    host, _, port = server.address.rpartition(":")
    header = f"Authorization: {authorization}\r\n" if authorization else ""
    received = b""
    with anyio.fail_after(DEADLINE_SECONDS):
        if context is None:
            stream: anyio.abc.ByteStream = await anyio.connect_tcp(host, int(port))
        else:
            stream = await anyio.connect_tcp(
                host, int(port), ssl_context=context, tls_hostname="localhost", tls_standard_compatible=False
            )
        async with stream:
            await stream.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n{header}Connection: close\r\n\r\n".encode())
            try:
                while True:
                    received += await stream.receive()
            except anyio.EndOfStream:
                pass
    return parsed(received)


async def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until the log says something."""
    with anyio.fail_after(DEADLINE_SECONDS):
        while True:
            if text in caplog.text:
                return
            await anyio.sleep(0.05)


@pytest.fixture
def open_folder(short_tmp_path: Path) -> Path:
    """A folder that every user may enter and write to."""
    short_tmp_path.chmod(0o777)
    return short_tmp_path


# -- the unix socket ---------------------------------------------------------------------------------------------------


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Be another user for the file system and for who asks whom."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


async def ask_as_user(server: Server, target: str, uid: int) -> Reply:
    """Connect as another user, which the kernel tells the server, and ask."""
    with as_user(uid):
        stream = await anyio.connect_unix(server.socket)
    received = b""
    async with stream:
        await stream.send(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        with anyio.fail_after(DEADLINE_SECONDS):
            try:
                while True:
                    received += await stream.receive()
            except anyio.EndOfStream:
                pass
    return parsed(received)


@needs_root
async def test_only_users_who_are_named_may_ask_by_any_route(
    engine: FakeEngine, open_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "phasewatch.access"):
        async with serving(engine, open_folder, socket_mode=0o666, socket_users=["54320"]) as server:
            for target in ("/metrics", "/", "/v1/status", "/v1/watch", "/nothing"):
                status, code, message, _ = error_of(await ask_as_user(server, target, STRANGER))
                assert (status, code, message) == (403, "forbidden", f"user {STRANGER} may not ask this daemon")
            assert (await ask_as_user(server, "/v1/status", 54320))[0] == 200
            assert (await ask(server, "/v1/status"))[0] == 200  # root, and the daemon's own user
            assert server.statistics().refused["user"] == 5
    said = [record.getMessage() for record in caplog.records if f"user {STRANGER}," in record.getMessage()]
    assert len(said) == 1
    assert f"process {os.getpid()} of user {STRANGER}, group {STRANGER} was refused" in said[0]
    assert engine.asked == []


@needs_root
async def test_where_nobody_is_named_the_rights_of_the_socket_decide(engine: FakeEngine, open_folder: Path) -> None:
    async with serving(engine, open_folder, socket_mode=0o666) as server:
        assert (await ask_as_user(server, "/v1/status", STRANGER))[0] == 200


@needs_root
async def test_the_socket_is_given_to_a_group(engine: FakeEngine, short_tmp_path: Path) -> None:
    group = grp.getgrall()[-1]
    for name in (group.gr_name, str(group.gr_gid)):
        async with serving(engine, short_tmp_path, socket_group=name) as server:
            found = server.socket.stat()
            assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (group.gr_gid, 0o660)


@needs_root
async def test_a_group_that_the_daemon_is_not_in_is_refused(engine: FakeEngine, open_folder: Path) -> None:
    with as_user(STRANGER), pytest.raises(ConfigError, match=r"daemon\.socket_group: the socket cannot be given to"):
        async with serving(engine, open_folder, socket_group="1"):
            pass
    assert not await anyio.Path(open_folder / "s.sock").exists()


def test_names_that_nobody_has_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"daemon\.socket_users: there is no user 'no-such-user'"):
        allowed_users(["no-such-user"])
    with pytest.raises(ConfigError, match=r"daemon\.socket_group: there is no group 'no-such-group'"):
        group_number("no-such-group")
    assert group_number("") == -1


def test_root_and_the_daemon_s_own_user_are_among_the_named() -> None:
    assert allowed_users(["root"]) == frozenset({0, os.geteuid()})
    assert allowed_users([]) is None


def test_a_user_who_does_not_exist_in_the_namespace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "map").write_text("         0          0          1\n       997        997          1\n")
    monkeypatch.setattr(access_module, "UID_MAP", tmp_path / "map")
    with pytest.raises(ConfigError, match=r"user 1000 does not exist in the daemon's user namespace.*PrivateUsers=no"):
        allowed_users(["1000"])
    assert is_mapped(997, "997 997 1")


async def test_a_caller_without_a_name_is_nobody() -> None:
    class Unknown:
        peer = None

        def certificate(self) -> dict[str, object]:
            return {}

    with pytest.raises(AccessRefused):
        await SocketAccess(None).admit(Unknown(), "")


# -- passwords and tokens ----------------------------------------------------------------------------------------------


async def test_over_tcp_every_route_needs_what_the_file_says(engine: FakeEngine, short_tmp_path: Path) -> None:
    path = web_file(short_tmp_path, USERS + TOKENS)
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", listen_api=True, web_config_file=path) as server:
        for target in (
            "/metrics",
            "/",
            "/v1/status",
            "/v1/watch",
            "/v1/openapi.json",
            "/nothing",
            "/v1/" + "n" * 65530,
        ):
            reply = await ask_as(server, target)
            assert error_of(reply)[:2] == (401, "unauthorized")
            assert reply[1]["www-authenticate"] == (
                'Basic realm="phasewatch", charset="UTF-8", Bearer realm="phasewatch"'
            )
        for allowed in (basic("ann", PASSWORD), f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
            assert (await ask_as(server, "/metrics", allowed))[2] == b"# a page\n"
            assert json.loads((await ask_as(server, "/v1/status", allowed))[2])["profiles"] == 2
        assert (await ask(server, "/v1/status"))[0] == 200  # the socket has its own rules
        assert server.statistics().refused["credentials"] == 7


@pytest.mark.parametrize(
    "authorization",
    [
        basic("ann", "wrong"),
        basic("ann", ""),
        basic("ann", PASSWORD + "\0"),
        basic("bob", PASSWORD),
        basic("", PASSWORD),
        basic("ann", HASH),
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"ann").decode(),
        "Basic " + base64.b64encode(b"\xff:\xff").decode(),
        "Bearer",
        "Bearer wrong",
        f"Bearer {hashlib.sha256(TOKEN.encode()).hexdigest()}",
        "Bearer \xff",
        f"Digest {TOKEN}",
        TOKEN,
    ],
)
async def test_what_is_wrong_is_refused(engine: FakeEngine, short_tmp_path: Path, authorization: str) -> None:
    path = web_file(short_tmp_path, USERS + TOKENS)
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", web_config_file=path) as server:
        assert (await ask_as(server, "/metrics", basic("ann", PASSWORD)))[
            0
        ] == 200  # what is remembered of it is no key
        assert error_of(await ask_as(server, "/metrics", authorization))[0] == 401


async def test_a_long_password_is_compared_as_bcrypt_does(engine: FakeEngine, short_tmp_path: Path) -> None:
    long = "p" * 100
    text = bcrypt.hashpw(long[:72].encode(), bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")
    path = web_file(short_tmp_path, f"basic_auth_users: {{ann: {text}}}")
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", web_config_file=path) as server:
        assert (await ask_as(server, "/metrics", basic("ann", long)))[0] == 200


async def test_a_password_is_hashed_once_and_an_unknown_user_costs_the_same(
    engine: FakeEngine, short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bytes] = []
    real: Callable[[bytes, bytes], bool] = bcrypt.checkpw

    def noted(password: bytes, known: bytes) -> bool:
        checked.append(known)
        return real(password, known)

    monkeypatch.setattr(bcrypt, "checkpw", noted)
    dear = bcrypt.hashpw(b"x", bcrypt.gensalt(5)).decode()
    path = web_file(short_tmp_path, f"{USERS}  bob: {dear}\n")
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", web_config_file=path) as server:
        for _ in range(3):
            assert (await ask_as(server, "/metrics", basic("ann", PASSWORD)))[0] == 200
        assert checked == [HASH.encode()]
        for name in ("ann", "nobody", "nobody"):
            assert (await ask_as(server, "/metrics", basic(name, "wrong")))[0] == 401
        assert checked[1:] == [HASH.encode(), dear.encode(), dear.encode()]


# -- TLS ---------------------------------------------------------------------------------------------------------------


def certificates(folder: Path, ca: trustme.CA, name: str = "server") -> str:
    """Write a certificate for localhost and its key; returns the file's section."""
    certificate = ca.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(folder / f"{name}.key")
    certificate.cert_chain_pems[0].write_to_path(folder / f"{name}.crt")
    return f"tls_server_config:\n  cert_file: {name}.crt\n  key_file: {name}.key\n"


def trusting(ca: trustme.CA, identity: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if identity is not None:
        identity.configure_cert(context)
    return context


async def test_tls_with_headers_of_the_file_and_no_plain_http(engine: FakeEngine, short_tmp_path: Path) -> None:
    ca = trustme.CA()
    text = certificates(short_tmp_path, ca) + "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"
    path = web_file(short_tmp_path, text)
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", web_config_file=path) as server:
        status, headers, body = await ask_as(server, "/metrics", context=trusting(ca))
        assert (status, headers["x-frame-options"], body) == (200, "deny", b"# a page\n")
        with pytest.raises((anyio.BrokenResourceError, IndexError)):
            await ask_as(server, "/metrics")
        assert "x-frame-options" not in (await ask(server, "/metrics"))[1]
        assert server.statistics().dropped == {("tcp", "handshake"): 1}


async def test_a_renewed_certificate_is_used_without_a_restart_and_a_broken_one_is_not(
    engine: FakeEngine, short_tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = trustme.CA(), trustme.CA()
    path = web_file(short_tmp_path, certificates(short_tmp_path, old))
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", web_config_file=path) as server:
        assert (await ask_as(server, "/metrics", context=trusting(old)))[0] == 200
        (short_tmp_path / "server.crt").write_text("half a certific")
        await until_logged(caplog, "the web configuration stays as it was")
        assert (await ask_as(server, "/metrics", context=trusting(old)))[0] == 200
        certificates(short_tmp_path, new)
        with anyio.fail_after(DEADLINE_SECONDS):
            while True:
                try:
                    assert (await ask_as(server, "/metrics", context=trusting(new)))[0] == 200
                    break
                except ssl.SSLCertVerificationError:
                    await anyio.sleep(0.05)


async def test_users_change_with_the_file_but_never_to_nobody_where_somebody_must_be_asked(
    engine: FakeEngine, short_tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "phasewatch.access")
    path = web_file(short_tmp_path, USERS)
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", web_config_file=path, must_protect=True) as server:
        assert (await ask_as(server, "/metrics", basic("ann", PASSWORD)))[0] == 200
        web_file(short_tmp_path, TOKENS)
        await until_logged(caplog, f"read {path} again")
        assert (await ask_as(server, "/metrics", f"Bearer {TOKEN}"))[0] == 200
        assert (await ask_as(server, "/metrics", basic("ann", PASSWORD)))[0] == 401
        web_file(short_tmp_path, "")
        await until_logged(caplog, "lets everybody in")
        assert (await ask_as(server, "/metrics"))[0] == 401


async def test_clients_need_a_certificate_with_a_name_that_is_allowed(engine: FakeEngine, short_tmp_path: Path) -> None:
    ca, other = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(short_tmp_path / "ca.crt")
    text = certificates(short_tmp_path, ca) + (
        "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
        "  client_allowed_sans: [prometheus.example]\n"
    )
    path = web_file(short_tmp_path, text)
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", web_config_file=path) as server:
        good = trusting(ca, ca.issue_cert("prometheus.example"))
        assert (await ask_as(server, "/metrics", context=good))[0] == 200
        known = trusting(ca, ca.issue_cert("grafana.example"))
        assert error_of(await ask_as(server, "/metrics", context=known))[:2] == (403, "forbidden")
        for stranger in (trusting(ca), trusting(ca, other.issue_cert("prometheus.example"))):
            with pytest.raises((anyio.BrokenResourceError, ssl.SSLError, IndexError)):
                await ask_as(server, "/metrics", context=stranger)
