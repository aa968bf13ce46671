"""The web configuration file, in the format of Prometheus's exporter-toolkit: who may come in over TCP, and how.

Reads it strictly, and every file that it names. Nothing that it raises or shows holds a key, a hash or a token.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from monitor.errors import ConfigError

T = TypeVar("T")

VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
CIPHERS = {
    f"TLS_ECDHE_{kind}_WITH_{name}": f"ECDHE-{kind}-{openssl}"
    for kind in ("ECDSA", "RSA")
    for name, openssl in {
        "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
        "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
        "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
        "AES_128_CBC_SHA": "AES128-SHA",
        "AES_256_CBC_SHA": "AES256-SHA",
    }.items()
}
TLS13_CIPHERS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Always on, as in Go: the list is for TLS 1.2."""
HEADERS = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)
DEAREST_BCRYPT = 16
"""Some seconds of work for one check; each step more doubles it."""


class TlsServerConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """As in the file."""

    cert: str | None = None
    key: str | None = None
    client_ca: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    client_auth_type: str | None = None
    client_ca_file: str | None = None
    client_allowed_sans: list[str] | None = None
    min_version: str | None = None
    max_version: str | None = None
    cipher_suites: list[str] | None = None
    prefer_server_cipher_suites: bool | None = None
    curve_preferences: list[str] | None = None


class HttpServerConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """As in the file. `http2` may stand there and means nothing: answers are HTTP/1.1."""

    http2: bool | None = None
    headers: dict[str, str] | None = None


class Document(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """As in the file. `bearer_tokens` is ours alone."""

    tls_server_config: TlsServerConfig | None = None
    http_server_config: HttpServerConfig | None = None
    basic_auth_users: dict[str, str] | None = None
    bearer_tokens: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """What the file says; without one, everybody may come in.

    Attributes:
        users: name -> bcrypt hash. tokens: name -> SHA-256 of a bearer token.
        headers: added to every answer.
        tls: None for plain HTTP.
        asks_certificate: only clients with a certificate come through the handshake.
        allowed_sans: names of which a client's certificate must hold one; empty for any.
        files: what it was read from, itself first.
    """

    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    tokens: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    asks_certificate: bool = False
    allowed_sans: frozenset[str] = frozenset()
    files: tuple[Path, ...] = ()

    @property
    def protects(self) -> bool:
        """Tell whether it lets in only who is known."""
        return bool(self.users or self.tokens or self.asks_certificate)


def read_web_config(path: Path) -> WebConfig:
    """Read a web configuration file and what it names; paths in it are relative to its folder.

    Raises:
        ConfigError: names the file and the key that is wrong.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        document = msgspec.convert({} if content is None else content, Document)
        return built(document, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise ConfigError(f"{path}{line}: not YAML: {error.problem}") from None  # its excerpt may hold a secret
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {type(error).__name__}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def built(document: Document, path: Path) -> WebConfig:
    """Make what is used of what is written; raises ValueError naming the key."""
    tls = document.tls_server_config
    files = [path]
    context = None
    if tls is not None and tls != TlsServerConfig():
        named = {name: path.parent / text for name in FILES if (text := getattr(tls, name))}
        files += named.values()
        context = tls_context(tls, named)
    headers = (document.http_server_config or HttpServerConfig()).headers or {}
    if unknown := sorted(set(headers) - set(HEADERS)):
        raise ValueError(f"http_server_config.headers: {unknown[0]} cannot be set; there are: {', '.join(HEADERS)}")
    if any(not text.isprintable() for text in headers.values()):
        raise ValueError("http_server_config.headers: a header must be one line without control characters")
    return WebConfig(
        users={name: bcrypt_hash(name, text) for name, text in (document.basic_auth_users or {}).items()},
        tokens={name: token_hash(name, text) for name, text in (document.bearer_tokens or {}).items()},
        headers={name: text for name, text in headers.items() if text},
        tls=context,
        asks_certificate=context is not None and context.verify_mode == ssl.CERT_REQUIRED,
        allowed_sans=frozenset((tls.client_allowed_sans if tls is not None else None) or ()),
        files=tuple(files),
    )


FILES = ("cert_file", "key_file", "client_ca_file")


def tls_context(tls: TlsServerConfig, named: Mapping[str, Path]) -> ssl.SSLContext:
    """Make the context of a [tls_server_config]."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = one_of("min_version", tls.min_version or "TLS12", VERSIONS)
    context.maximum_version = one_of("max_version", tls.max_version or "TLS13", VERSIONS)
    if context.maximum_version < context.minimum_version:
        raise ValueError("tls_server_config.max_version is below min_version")
    choose_algorithms(context, tls)
    load_certificate(context, tls, named)
    check_clients(context, tls, named)
    return context


def choose_algorithms(context: ssl.SSLContext, tls: TlsServerConfig) -> None:
    """Set ciphers and the curve."""
    suites = [name for name in tls.cipher_suites or () if name not in TLS13_CIPHERS]
    if suites:
        context.set_ciphers(":".join(one_of("cipher_suites", name, CIPHERS) for name in suites))
    if tls.prefer_server_cipher_suites is False:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    curves = [one_of("curve_preferences", name, CURVES) for name in tls.curve_preferences or ()]
    if len(curves) > 1:
        raise ValueError("tls_server_config.curve_preferences: name one curve, or leave it out for the usual ones")
    for curve in curves:
        context.set_ecdh_curve(curve)


def load_certificate(context: ssl.SSLContext, tls: TlsServerConfig, named: Mapping[str, Path]) -> None:
    """Load the server's certificate and key, from files or from the text itself."""
    for name in ("cert", "key"):
        if bool(getattr(tls, name)) == (f"{name}_file" in named):
            raise ValueError(f"tls_server_config: give {name}_file, or {name} in its place")
    with given("cert", tls.cert, named) as cert, given("key", tls.key, named) as key:
        try:
            context.load_cert_chain(cert, key, password=lambda: "")  # an encrypted key must not ask a terminal
        except ssl.SSLError as error:
            reason = error.reason or "no PEM, or the key is encrypted"
            raise ValueError(f"tls_server_config: certificate and key cannot be used: {reason}") from None


def check_clients(context: ssl.SSLContext, tls: TlsServerConfig, named: Mapping[str, Path]) -> None:
    """Set what is asked of clients' certificates."""
    mode = one_of("client_auth_type", tls.client_auth_type or "", CLIENT_AUTH)
    if tls.client_ca and "client_ca_file" in named:
        raise ValueError("tls_server_config: give client_ca_file, or client_ca in its place")
    has_ca = bool(tls.client_ca) or "client_ca_file" in named
    if has_ca and mode == ssl.CERT_NONE:
        raise ValueError("tls_server_config.client_ca_file is of no use with client_auth_type: NoClientCert")
    if mode != ssl.CERT_NONE and not has_ca:
        raise ValueError(f"tls_server_config.client_ca_file is missing: {tls.client_auth_type} needs it")
    if tls.client_allowed_sans and mode != ssl.CERT_REQUIRED:
        raise ValueError("tls_server_config.client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert")
    if not has_ca:
        return
    context.verify_mode = mode
    with given("client_ca", tls.client_ca, named) as ca:
        try:
            context.load_verify_locations(ca)
        except ssl.SSLError as error:
            raise ValueError(f"tls_server_config.client_ca_file cannot be used: {error.reason}") from None


@contextmanager
def given(name: str, text: str | None, named: Mapping[str, Path]) -> Iterator[str]:
    """Give a file's path; a text becomes a file in memory, which ssl can open. OSErrors name the key."""
    if not text:
        path = named[f"{name}_file"]
        try:
            path.open("rb").close()
        except OSError as error:
            raise ValueError(
                f"tls_server_config.{name}_file: {path} cannot be read: {error.strerror or error}"
            ) from error
        yield str(path)
        return
    descriptor = os.memfd_create(name)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def one_of(key: str, name: str, known: Mapping[str, T]) -> T:
    """Look a word up."""
    if name not in known:
        words = ", ".join(word for word in known if word)
        raise ValueError(f"tls_server_config.{key}: {name[:100]!r} cannot be used; there are: {words}")
    return known[name]


def bcrypt_hash(name: str, text: str) -> bytes:
    """Check one user's hash."""
    found = re.fullmatch(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}", text)
    if found is None or not 4 <= int(found[1]):
        raise ValueError(f"basic_auth_users: what stands there for {name!r} is no bcrypt hash: htpasswd -nBC 10 NAME")
    if int(found[1]) > DEAREST_BCRYPT:
        raise ValueError(f"basic_auth_users: the hash for {name!r} has a cost above {DEAREST_BCRYPT}")
    return text.encode()


def token_hash(name: str, text: str) -> bytes:
    """Check one token's hash."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise ValueError(f"bearer_tokens: what stands there for {name!r} is no SHA-256: 64 hexadecimal digits")
    return bytes.fromhex(text)
