"""Who may ask: users of the unix socket by what the kernel says of them, others by the web configuration file.

Judges each request before anything else is done for it. What it says and logs holds no password, token or hash.
"""

from __future__ import annotations

import grp
import hashlib
import hmac
import logging
import os
import pwd
import secrets
import socket as sockets
import ssl
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio
import anyio.to_thread
import bcrypt
from aiohttp import BasicAuth

from monitor.errors import AccessRefused, ConfigError, QueryError
from monitor.logs import log_once
from monitor.web_config import WebConfig, read_web_config

logger = logging.getLogger("phasewatch.access")

LONGEST_PASSWORD_BYTES = 72
"""bcrypt looks at no more, in Go as in C."""
LONGEST_WAIT_SECONDS = 5.0
REALM = 'realm="phasewatch"'
ASKED = "process %d of user %d, group %d asks; said once for each user"
REFUSED = "process %d of user %d, group %d was refused; said once for each user"
ROOT = 0
UID_MAP = Path("/proc/self/uid_map")


class Peer(NamedTuple):
    """Who is at the other end of a unix socket, by the kernel's word at the time of connecting."""

    pid: int
    uid: int
    gid: int


class Caller(Protocol):
    """What a connection knows of who is at its other end."""

    @property
    def peer(self) -> Peer | None:
        """Who it is, on a unix socket."""
        ...

    def certificate(self) -> Mapping[str, object]:
        """Return the client's verified certificate, as `ssl` gives it; empty for none."""
        ...


class Access(Protocol):
    """Decides who may come in by one listener."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For the next connection."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """For every answer."""
        ...

    async def admit(self, caller: Caller, authorization: str) -> None:
        """Let a request pass.

        Raises:
            AccessRefused: it may not; QueryError: that could not be found out in time.
        """
        ...

    async def refresh(self) -> None:
        """Look whether the rules have changed."""
        ...


# -- the unix socket ---------------------------------------------------------------------------------------------------


class SocketAccess:
    """Lets in users by number; whoever the socket's rights let in where none is named."""

    def __init__(self, users: frozenset[int] | None) -> None:
        self._users = users
        self.tls: ssl.SSLContext | None = None
        self.headers: Mapping[str, str] = {}

    async def admit(self, caller: Caller, authorization: str) -> None:
        """Judge by the user."""
        peer = caller.peer
        if peer is None:
            raise AccessRefused("who asks is not known", status=403, reason="user")
        logger.debug("process %d of user %d, group %d asks", *peer)
        if self._users is not None and peer.uid not in self._users:
            log_once(logger, f"refused user {peer.uid}", REFUSED, *peer, level=logging.WARNING)
            raise AccessRefused(f"user {peer.uid} may not ask this daemon", status=403, reason="user")
        log_once(logger, f"user {peer.uid}", ASKED, *peer)

    async def refresh(self) -> None:
        """Nothing can change."""


def peer_of(client: sockets.socket) -> Peer | None:
    """Ask the kernel who connected; None where the socket is none of the unix kind."""
    if client.family != sockets.AF_UNIX:
        return None
    layout = struct.Struct("=iII")
    return Peer(*layout.unpack(client.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, layout.size)))


def allowed_users(names: Sequence[str]) -> frozenset[int] | None:
    """Return the numbers of users, with root and the daemon's own; None where nobody is named.

    Raises:
        ConfigError: there is no such user, or who asks cannot be told apart here.
    """
    if not names:
        return None
    users = {int(name) if name.isdecimal() else number_of(name, "daemon.socket_users", user_number) for name in names}
    uid_map = UID_MAP.read_text(encoding="ascii")
    for uid in sorted(users):
        if not is_mapped(uid, uid_map):
            raise ConfigError(
                f"daemon.socket_users: user {uid} does not exist in the daemon's user namespace, where all strangers "
                "are one: with systemd, PrivateUsers=no"
            )
    return frozenset(users | {ROOT, os.geteuid()})


def group_number(name: str) -> int:
    """Return the number of a group, -1 for none.

    Raises:
        ConfigError: there is no such group.
    """
    if not name:
        return -1
    return int(name) if name.isdecimal() else number_of(name, "daemon.socket_group", lambda n: grp.getgrnam(n).gr_gid)


def user_number(name: str) -> int:
    """Look a user up; raises KeyError."""
    return pwd.getpwnam(name).pw_uid


def number_of(name: str, key: str, look_up: Callable[[str], int]) -> int:
    """Look a name up."""
    try:
        return look_up(name)
    except KeyError:
        raise ConfigError(f"{key}: there is no {key.rpartition('_')[2].rstrip('s')} {name!r}") from None


def is_mapped(uid: int, uid_map: str) -> bool:
    """Tell whether a user exists in a namespace, by its map of (first inside, first outside, how many)."""
    ranges = [[int(word) for word in line.split()] for line in uid_map.splitlines()]
    return any(inside <= uid < inside + count for inside, _, count in ranges)


# -- TCP ---------------------------------------------------------------------------------------------------------------


class WebAccess:
    """Lets in who the web configuration file names, and follows that file and what it names.

    A file that is broken later changes nothing: what was read before holds on, and the log says so.

    Args:
        path: None for no file: everybody may come in.
        must_protect: refuse a file that lets everybody in.
    """

    def __init__(self, path: Path | None, *, must_protect: bool) -> None:
        self._path = path
        self._must_protect = must_protect
        self._config = WebConfig()
        self._seen: tuple[tuple[int, ...], ...] = ()
        self._failed: tuple[tuple[int, ...], ...] = ()
        self._turn = anyio.CapacityLimiter(1)  # checking a password costs a core: one at a time, off the loop
        self._key = secrets.token_bytes(32)
        self._proven: dict[str, bytes] = {}

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For the next connection."""
        return self._config.tls

    @property
    def headers(self) -> Mapping[str, str]:
        """For every answer."""
        return self._config.headers

    def read(self) -> None:
        """Read the file. Blocks.

        Raises:
            ConfigError: it cannot be used.
        """
        if self._path is None:
            return
        before = versions(self._config.files or (self._path,))
        config = read_web_config(self._path)
        if self._must_protect and not config.protects:
            raise ConfigError(
                f"{self._path} lets everybody in: name users in basic_auth_users or bearer_tokens, "
                "or ask for certificates"
            )
        seen = before if self._config.files == config.files else versions(config.files)
        self._config, self._seen = config, seen

    async def refresh(self) -> None:
        """Read the file again where it, or one that it names, has changed."""
        if self._path is not None:
            await anyio.to_thread.run_sync(self._read_changed)

    def _read_changed(self) -> None:
        now = versions(self._config.files)
        if now in (self._seen, self._failed):
            return
        try:
            self.read()
        except ConfigError as error:
            self._failed = now
            logger.error("the web configuration stays as it was: %s", error)
        else:
            self._failed = ()
            logger.info("read %s again", self._path)

    async def admit(self, caller: Caller, authorization: str) -> None:
        """Judge by the certificate's names, and by a password or a token."""
        config = self._config
        if config.allowed_sans and not config.allowed_sans & sans_of(caller.certificate()):
            raise AccessRefused("the certificate holds no name that may ask", status=403, reason="certificate")
        if not (config.users or config.tokens):
            return
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == "bearer" and holds_token(config.tokens, rest.strip()):
            return
        if scheme.lower() == "basic" and config.users and await self._is_password(config.users, authorization):
            return
        ways = [f'Basic {REALM}, charset="UTF-8"'] * bool(config.users) + [f"Bearer {REALM}"] * bool(config.tokens)
        raise AccessRefused(
            "a user and password, or a token, that the web configuration file knows is needed",
            status=401,
            reason="credentials",
            challenge=", ".join(ways),
        )

    async def _is_password(self, users: Mapping[str, bytes], authorization: str) -> bool:
        try:
            name, password, _ = BasicAuth.decode(authorization, "utf-8")
        except ValueError:
            return False
        hashed = users.get(name)
        proof = hmac.digest(self._key, b"\0".join((name.encode(), hashed or b"", password.encode())), "sha256")
        if hashed is not None and hmac.compare_digest(self._proven.get(name, b""), proof):
            return True
        # One that is unknown costs what the dearest of the known ones does, so time tells no names.
        judged = hashed or max(users.values(), key=lambda text: text[4:6])
        try:
            with anyio.fail_after(LONGEST_WAIT_SECONDS):
                matches = await anyio.to_thread.run_sync(matches_hash, password, judged, limiter=self._turn)
        except TimeoutError:
            raise QueryError("too many passwords wait to be checked; try again", status=503, code="busy") from None
        if not matches or hashed is None:
            return False
        self._proven[name] = proof
        return True


def matches_hash(password: str, hashed: bytes) -> bool:
    """Check a password. Takes long on purpose."""
    try:
        return bcrypt.checkpw(password.encode()[:LONGEST_PASSWORD_BYTES], hashed)
    except ValueError:
        return False


def holds_token(tokens: Mapping[str, bytes], token: str) -> bool:
    """Tell whether a token is known; looks at all of them, so time tells nothing."""
    given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
    return sum(hmac.compare_digest(known, given) for known in tokens.values()) > 0


def sans_of(certificate: Mapping[str, object]) -> frozenset[str]:
    """Return the alternative names in a certificate."""
    names = certificate.get("subjectAltName", ())
    return frozenset(str(value) for _, value in names) if isinstance(names, tuple) else frozenset()


def versions(files: Iterable[Path]) -> tuple[tuple[int, ...], ...]:
    """Return what changes when one of the files does, a swapped link included."""
    found: list[tuple[int, ...]] = []
    for path in files:
        try:
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append(())
    return tuple(found)
