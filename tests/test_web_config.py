"""The web configuration file: what the format allows is read, what is wrong is named, and no secret is shown."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from monitor.errors import ConfigError
from monitor.web_config import WebConfig, read_web_config

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
TOKEN_HASH = "a" * 64


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def folder(tmp_path: Path, ca: trustme.CA) -> Path:
    """A folder with a.crt, a.key and ca.crt."""
    certificate = ca.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "a.key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "a.crt")
    ca.cert_pem.write_to_path(tmp_path / "ca.crt")
    return tmp_path


def read(folder: Path, text: str) -> WebConfig:
    path = folder / "web.yml"
    path.write_text(text, encoding="utf-8")
    return read_web_config(path)


def refusal(folder: Path, text: str) -> str:
    """Return what is said about a text."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value).removeprefix(str(folder))


def test_an_empty_file_lets_everybody_in(tmp_path: Path) -> None:
    for text in ("", "{}", "tls_server_config:\nbasic_auth_users:\n", "http_server_config: {http2: false}"):
        config = read(tmp_path, text)
        assert (config.tls, config.users, config.tokens, config.protects) == (None, {}, {}, False)


def test_what_the_format_allows_is_read_with_paths_relative_to_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    text = f"""
tls_server_config:
  cert_file: a.crt
  key_file: {folder}/a.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.crt
  client_allowed_sans: [prometheus.example]
  min_version: TLS12
  max_version: TLS12
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: true
  curve_preferences: [CurveP256]
http_server_config:
  http2: true
  headers:
    X-Frame-Options: deny
    X-XSS-Protection: ""
basic_auth_users:
  ann: {HASH}
bearer_tokens:
  prometheus: {TOKEN_HASH}
"""
    config = read(folder, text)
    assert config.tls is not None
    assert (config.tls.minimum_version, config.tls.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)
    assert config.tls.verify_mode == ssl.CERT_REQUIRED
    assert [each["name"] for each in config.tls.get_ciphers() if each["protocol"] != "TLSv1.3"] == [
        "ECDHE-RSA-AES128-GCM-SHA256"
    ]
    assert config.headers == {"X-Frame-Options": "deny"}
    assert config.users == {"ann": HASH.encode()}
    assert config.tokens == {"prometheus": bytes.fromhex(TOKEN_HASH)}
    assert config.files == tuple(folder / name for name in ("web.yml", "a.crt", "a.key", "ca.crt"))
    assert config.protects
    for secret in (HASH, TOKEN_HASH, repr(bytes.fromhex(TOKEN_HASH))):
        assert secret not in repr(config)


def test_certificates_may_stand_in_the_file_itself(folder: Path) -> None:
    def indented(name: str) -> str:
        return "|\n" + "".join(f"    {line}\n" for line in (folder / name).read_text().splitlines())

    text = f"tls_server_config:\n  cert: {indented('a.crt')}  key: {indented('a.key')}  client_ca: {indented('ca.crt')}"
    config = read(folder, text + "  client_auth_type: VerifyClientCertIfGiven\n")
    assert config.tls is not None
    assert config.tls.verify_mode == ssl.CERT_OPTIONAL
    assert not config.protects


TLS = "tls_server_config: {cert_file: a.crt, key_file: a.key, "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tls_server_config: {cert_fil: x}", "unknown field `cert_fil` - at `$.tls_server_config`"),
        ("basic_auth: {}", "unknown field `basic_auth`"),
        ("rate_limit: {burst: 1}", "unknown field `rate_limit`"),
        ("http_server_config: {headers: {X-Other: a}}", "http_server_config.headers: X-Other cannot be set"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\r\\nb"}}', "must be one line"),
        ("- a", "Expected `object`, got `array`"),
        ("basic_auth_users: {ann: 12345}", "Expected `str`, got `int` - at `$.basic_auth_users"),
        ("basic_auth_users: {ann: hunter2}", "what stands there for 'ann' is no bcrypt hash"),
        (f"basic_auth_users: {{ann: {HASH.replace('$10$', '$17$')}}}", "the hash for 'ann' has a cost above 16"),
        (f"basic_auth_users: {{ann: {HASH.replace('$10$', '$03$')}}}", "is no bcrypt hash"),
        ("bearer_tokens: {ann: hunter2}", "what stands there for 'ann' is no SHA-256: 64 hexadecimal digits"),
        ("tls_server_config: {cert_file: a.crt}", "give key_file, or key in its place"),
        ("tls_server_config: {key_file: a.key, min_version: TLS13}", "give cert_file, or cert in its place"),
        (
            "tls_server_config: {cert_file: a.crt, cert: hunter2, key_file: a.key}",
            "give cert_file, or cert in its place",
        ),
        ("tls_server_config: {cert_file: no.crt, key_file: a.key}", "cert_file: /no.crt cannot be read: No such file"),
        ("tls_server_config: {cert_file: a.crt, key_file: .}", "key_file:  cannot be read: Is a directory"),
        ("tls_server_config: {cert_file: a.key, key_file: a.crt}", "certificate and key cannot be used"),
        ("tls_server_config: {cert: hunter2, key: hunter2}", "certificate and key cannot be used"),
        (TLS + "min_version: TLS10}", "min_version: 'TLS10' cannot be used; there are: TLS12, TLS13"),
        (TLS + "min_version: TLS13, max_version: TLS12}", "max_version is below min_version"),
        (TLS + "cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]}", "cipher_suites: 'TLS_RSA_WITH_RC4_128_SHA' cannot"),
        (TLS + "curve_preferences: [CurveP256, X25519]}", "curve_preferences: name one curve"),
        (TLS + "client_auth_type: RequireAnyClientCert}", "client_auth_type: 'RequireAnyClientCert' cannot be used"),
        (TLS + "client_auth_type: RequireAndVerifyClientCert}", "client_ca_file is missing"),
        (TLS + "client_ca_file: ca.crt}", "client_ca_file is of no use with client_auth_type: NoClientCert"),
        (TLS + "client_ca_file: a.key, client_auth_type: VerifyClientCertIfGiven}", "client_ca_file cannot be used"),
        (
            TLS + "client_ca_file: ca.crt, client_auth_type: VerifyClientCertIfGiven, client_allowed_sans: [a]}",
            "client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert",
        ),
        ("basic_auth_users: {ann: hunter2", ":1: not YAML: "),
        ("basic_auth_users: !!python/object/apply:os.system [hunter2]", ":1: not YAML: "),
        ("a: " + "[" * 5000, "not YAML"),
        ("\0", "not YAML"),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_shown(folder: Path, text: str, said: str) -> None:
    message = refusal(folder, text)
    assert said in message.replace(str(folder), "")
    assert "hunter2" not in message
    assert HASH[:20] not in message


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.yml: cannot be read: No such file"):
        read_web_config(tmp_path / "no.yml")


def test_an_encrypted_key_asks_no_terminal(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((folder / "a.key").read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"hunter2")
    (folder / "a.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    assert "certificate and key cannot be used" in refusal(folder, TLS + "min_version: TLS12}")
