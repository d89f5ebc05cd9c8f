"""Keys that the engine takes, and certificates that stand up to a strict check over a real connection."""

from __future__ import annotations

import base64
import socket
import ssl
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedhip.federation.agreement import credentials
from fedhip.federation.agreement.credentials import (
    fingerprint,
    make_authority,
    make_server_certificate,
    make_site_key,
    public_key_of,
    read_authority,
    read_private_key,
    require_host,
    require_public_key,
    sign,
    site_key_of,
    verify,
)
from fedhip.federation.errors import SetupError
from tests.waiting import PATIENCE

# Made by ssh-keygen -t ecdsa -b 384, and its fingerprint by ssh-keygen -l.
ANNA = (
    b"ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBFvotpVwXUcPRWetx21diTEYPWttFI3CmiHQdm74"
    b"Q34AvJh7AxhYNiYHuUPKJfR471OPsdAIW7r4Qaj8eZRXlCnE1EigUZvpgEuG0zI9DzuXpEejKh5zld3JeapdOLACQg== anna@example.org\n"
)
ANNA_FINGERPRINT = "SHA256:0dCbiUemb3rXCz5MgUjC/jlbfRhyYIjam1/ZjTDEHko"


def test_the_engine_reads_both_halves(tmp_path: Path) -> None:
    """By the two calls with which flower-supernode and `flwr supernode register` read keys in version 1.41."""
    public = make_site_key(tmp_path / "key")
    private = serialization.load_ssh_private_key((tmp_path / "key").read_bytes(), None)
    registered = serialization.load_ssh_public_key((tmp_path / "key.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(registered, ec.EllipticCurvePublicKey)
    assert isinstance(registered.curve, ec.SECP384R1)
    assert private.public_key() == registered
    assert require_public_key((tmp_path / "key.pub").read_bytes()) == public == public_key_of(site_key_of(tmp_path))


def test_a_key_is_its_owners_alone_and_never_replaced(tmp_path: Path) -> None:
    make_site_key(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    before = (tmp_path / "key").read_bytes()
    with pytest.raises(SetupError, match="key exists; choose another name"):
        make_site_key(tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == before
    (tmp_path / "other.pub").write_text("mine")
    with pytest.raises(SetupError, match=r"other\.pub exists"):
        make_site_key(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(SetupError, match=r"none/key cannot be written \(No such file"):
        make_site_key(tmp_path / "none" / "key")


def test_no_half_of_a_key_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = credentials.write_private

    def fails_for_the_public_half(path: Path, data: bytes) -> None:
        if path.suffix == ".pub":
            raise OSError(28, "No space left on device")
        whole(path, data)

    monkeypatch.setattr(credentials, "write_private", fails_for_the_public_half)
    with pytest.raises(OSError, match="No space"):
        make_site_key(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_key_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    make_site_key(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(SetupError, match=rf"mode {mode:04o}\); run: chmod 600"):
        read_private_key(tmp_path / "key")


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def _openssh(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def test_other_kinds_of_private_keys_are_refused(tmp_path: Path) -> None:
    small = ec.generate_private_key(ec.SECP256R1())
    pkcs8 = small.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    good = _openssh(ec.generate_private_key(ec.SECP384R1()))
    for data, message in (
        (_openssh(small), "not of the kind EC P-384"),
        (_openssh(ed25519.Ed25519PrivateKey.generate()), "not of the kind EC P-384"),
        (pkcs8, "not a private key in OpenSSH's format"),
        (ANNA, "not a private key in OpenSSH's format"),
        (good[:-120], "is damaged"),
        (b"", "not a private key"),
        (b"x" * 100_000, "too large"),
    ):
        with pytest.raises(SetupError, match=message):
            read_private_key(_write(tmp_path / "key", data))
    with pytest.raises(SetupError, match="there is no key file"):
        read_private_key(tmp_path / "none")
    with pytest.raises(SetupError, match="cannot be read"):
        read_private_key(tmp_path)


def test_a_passphrase_is_named(tmp_path: Path) -> None:
    # As ssh-keygen writes it: the cipher's name says that there is one.
    def string(value: bytes) -> bytes:
        return struct.pack(">I", len(value)) + value

    options = string(string(b"0" * 16) + struct.pack(">I", 16))
    public = string(base64.b64decode(ANNA.split()[1]))
    blob = b"openssh-key-v1\0" + string(b"aes256-ctr") + string(b"bcrypt") + options + struct.pack(">I", 1) + public
    text = base64.encodebytes(blob + string(b"\0" * 64))
    data = b"-----BEGIN OPENSSH PRIVATE KEY-----\n" + text + b"-----END OPENSSH PRIVATE KEY-----\n"
    with pytest.raises(SetupError, match=r"has a passphrase.*ssh-keygen -p"):
        read_private_key(_write(tmp_path / "key", data))


def test_public_keys_have_one_form_and_ssh_keygens_fingerprint() -> None:
    key = require_public_key(ANNA)
    assert key == ANNA.rsplit(b" ", 1)[0]
    assert fingerprint(key) == fingerprint(ANNA) == ANNA_FINGERPRINT
    for text in (b"", b"ssh-ed25519 AAAA", ANNA[:100], b"ecdsa-sha2-nistp384 !!!!", b"-----BEGIN OPENSSH PRIVATE KEY"):
        with pytest.raises(SetupError):
            require_public_key(text)
    small = ec.generate_private_key(ec.SECP256R1()).public_key()
    blob = small.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).split()[1]
    with pytest.raises(SetupError):
        require_public_key(b"ecdsa-sha2-nistp384 " + blob)
    with pytest.raises(SetupError, match="not a public key"):
        fingerprint(b"hello")


def test_signatures(tmp_path: Path) -> None:
    public, other = make_site_key(tmp_path / "a"), make_site_key(tmp_path / "b")
    signature = sign(read_private_key(tmp_path / "a"), b"session 1")
    assert verify(public, signature, b"session 1")
    assert not verify(public, signature, b"session 2")
    assert not verify(other, signature, b"session 1")
    assert not verify(public, signature[:-1], b"session 1")
    assert not verify(public, b"", b"session 1")


@pytest.mark.parametrize(
    "host", ["", "a b", "*.example.org", "-a.org", "a..b", "x" * 64, "h:80", "1.2.3", "é.org", "a\n"]
)
def test_hosts_that_no_certificate_is_made_for(host: str) -> None:
    with pytest.raises(SetupError, match="host is"):
        require_host(host)


def test_hosts() -> None:
    assert require_host("Server.Example.org") == "server.example.org"
    assert require_host("2001:DB8::0:1") == "2001:db8::1"
    assert require_host("192.0.2.7") == "192.0.2.7"


# Over a connection


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("federation")
    make_authority(directory, "study")
    make_server_certificate(directory, ["server.example.org", "192.0.2.7", "2001:db8::1"])
    return directory


@contextmanager
def _serving(certificate: Path, key: Path) -> Iterator[int]:
    """A TLS server on loopback that greets each caller; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.02)

        def serve() -> None:
            while not done.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                connection.settimeout(5)
                # A caller that refuses the certificate hangs up.
                with connection, suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
                    secure.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            done.set()
            thread.join()


def _greeting(port: int, authority: Path, host: str) -> bytes:
    context = ssl.create_default_context(cafile=str(authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        return secure.recv(5)


def test_right_hosts_pass_and_all_others_are_refused(federation: Path, tmp_path: Path) -> None:
    make_authority(tmp_path, "study")  # of the same name, with another key
    with _serving(federation / "server/server.pem", federation / "server/server.key") as port:
        ca = federation / "ca/ca.crt"
        for host in ("127.0.0.1", "localhost", "server.example.org", "192.0.2.7", "2001:db8::1"):
            assert _greeting(port, ca, host) == b"hello"
        for host in ("127.0.0.2", "other.example.org", "sub.server.example.org", "server"):
            with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
                _greeting(port, ca, host)
        with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
            _greeting(port, tmp_path / "ca/ca.crt", "localhost")


def test_an_expired_certificate_is_refused_until_it_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_authority(tmp_path, "study")
    with monkeypatch.context() as patch:
        patch.setattr(credentials, "_now", lambda: datetime.now(UTC).replace(microsecond=0) - timedelta(days=40))
        patch.setattr(credentials, "require_valid_today", lambda *_: None)
        make_server_certificate(tmp_path, days=30)
    old = (tmp_path / "server/server.key").read_bytes()
    with (
        _serving(tmp_path / "server/server.pem", tmp_path / "server/server.key") as port,
        pytest.raises(ssl.SSLCertVerificationError, match="expired"),
    ):
        _greeting(port, tmp_path / "ca/ca.crt", "localhost")
    make_server_certificate(tmp_path)
    assert (tmp_path / "server/server.key").read_bytes() != old
    assert sorted(path.name for path in (tmp_path / "server").iterdir()) == ["server.key", "server.pem"]
    with _serving(tmp_path / "server/server.pem", tmp_path / "server/server.key") as port:
        assert _greeting(port, tmp_path / "ca/ca.crt", "localhost") == b"hello"


def test_the_servers_key_makes_no_certificates(federation: Path, tmp_path: Path) -> None:
    """Who steals the server's key cannot make a certificate for another host that sites would accept."""
    server = x509.load_pem_x509_certificate((federation / "server/server.pem").read_bytes())
    signer = serialization.load_pem_private_key((federation / "server/server.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    forged = (
        credentials._builder(
            credentials._name("x", "y"),
            server.subject,
            key.public_key(),
            server.not_valid_before_utc,
            server.not_valid_after_utc,
            signer,
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("victim.example.org")]), critical=False)
        .sign(signer, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    (tmp_path / "chain.pem").write_bytes(forged.public_bytes(pem) + server.public_bytes(pem))
    _write(tmp_path / "key.pem", credentials._pem(key))
    with (
        _serving(tmp_path / "chain.pem", tmp_path / "key.pem") as port,
        pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"),
    ):
        _greeting(port, federation / "ca/ca.crt", "victim.example.org")


def test_what_the_certificates_say(federation: Path) -> None:
    authority = read_authority(federation / "ca/ca.crt")
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    assert not usage.digital_signature
    server = x509.load_pem_x509_certificate((federation / "server/server.pem").read_bytes())
    assert list(server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.SERVER_AUTH
    ]
    length = server.not_valid_after_utc - server.not_valid_before_utc
    assert length == timedelta(days=credentials.SERVER_DAYS + 1)
    for path in federation.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_a_certificate_ends_with_its_authority(tmp_path: Path) -> None:
    make_authority(tmp_path, "study", days=10)
    make_server_certificate(tmp_path, days=100)
    server = x509.load_pem_x509_certificate((tmp_path / "server/server.pem").read_bytes())
    assert server.not_valid_after_utc == read_authority(tmp_path / "ca/ca.crt").not_valid_after_utc


def test_authorities_that_are_none(federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SetupError, match=r"server\.pem is not the certificate of an authority"):
        read_authority(federation / "server/server.pem")
    with pytest.raises(SetupError, match="is not a certificate"):
        read_authority(federation / "ca/ca.key")
    with pytest.raises(SetupError, match="there is no file"):
        read_authority(tmp_path / "ca.crt")
    for days, word in ((4000, "renewed"), (-10, "clock")):
        with monkeypatch.context() as patch:
            patch.setattr(credentials, "_now", lambda days=days: datetime.now(UTC) + timedelta(days=days))
            with pytest.raises(SetupError, match=f"is valid from .*{word}"):
                read_authority(federation / "ca/ca.crt")
    make_authority(tmp_path, "study")
    (tmp_path / "ca/ca.key").write_bytes((federation / "ca/ca.key").read_bytes())
    with pytest.raises(SetupError, match=r"does not belong to ca\.crt"):
        make_server_certificate(tmp_path)
    wrong: list[Any] = [0, -1, True, 1.5, 100_000]
    for days in wrong:
        with pytest.raises(SetupError, match="days is"):
            make_server_certificate(federation, days=days)


def test_a_renewed_certificate_is_for_the_same_hosts_unless_others_are_given(tmp_path: Path) -> None:
    make_authority(tmp_path, "demo")
    make_server_certificate(tmp_path, ["fed.example.org", "192.0.2.7"], days=2)
    first = (tmp_path / "server" / "server.pem").read_bytes()
    until = credentials.renew_server_certificate(tmp_path, days=30)
    pem = (tmp_path / "server" / "server.pem").read_bytes()
    assert pem != first
    names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"fed.example.org", "localhost"} == set(names.get_values_for_type(x509.DNSName))
    assert {"127.0.0.1", "192.0.2.7"} == set(map(str, names.get_values_for_type(x509.IPAddress)))
    assert 29 <= (until - datetime.now(UTC)).days <= 30
    credentials.renew_server_certificate(tmp_path, ["other.example.org"])
    again = x509.load_pem_x509_certificate((tmp_path / "server" / "server.pem").read_bytes())
    assert "fed.example.org" not in str(again.extensions)
