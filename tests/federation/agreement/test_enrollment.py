"""Keys made at the sites: parcels, replies, the roster; and every way in which they can be wrong, in one line each."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedhip.errors import FileError
from fedhip.federation.agreement import enrollment
from fedhip.federation.agreement.credentials import make_site_key, read_private_key
from fedhip.federation.agreement.fingerprint import fingerprint_of, require_fingerprint
from fedhip.federation.agreement.init import draft, init
from fedhip.federation.agreement.parcel import EnrollmentReply, Parcel, _checksum
from fedhip.federation.agreement.summary import in_words
from fedhip.federation.errors import SetupError
from fedhip.federation.operations.serving import write_endpoint
from fedhip.federation.site.folder import open_site
from fedhip.utils import files as utils_files
from tests.cli.samples import done, refused

SITES = ("a", "b", "c")
Capture = pytest.CaptureFixture[str]


_CENSUS = "how many rows there are of each class"


def made(folder: Path, **changes: Any) -> Path:
    settings: dict[str, Any] = {"name": "study", "sites": SITES, "classes": ["x", "y"], "width": 4}
    settings |= {"hosts": ["fed.example.org"], **changes}
    return init(folder, **settings).directory


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A coordinator's folder, and a machine on which all sites work in one folder."""
    monkeypatch.chdir(tmp_path)
    return made(tmp_path / "fed")


@pytest.fixture
def replied(fed: Path, tmp_path: Path) -> Path:
    for site in SITES:
        enrollment.accept_first(Parcel.read(fed / f"parcels/{site}-1.json"), tmp_path / f"site-{site}")
    return fed


@pytest.fixture
def enrolled(replied: Path, tmp_path: Path) -> Path:
    enrollment.enroll(replied, sorted(tmp_path.glob("site-*/reply-*.json")))
    return replied


def told(fed: Path) -> str:
    return enrollment.fingerprint_at(fed)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_from_init_to_a_site_that_can_take_part(tmp_path: Path, fed: Path, capsys: Capture) -> None:
    before = os.umask(0)  # nothing may depend on it
    try:
        for site in SITES:
            done("federation", "accept", fed / "parcels" / f"{site}-1.json")
        shown = capsys.readouterr().out
        assert "takes part: 3 sites, a, b, c" in shown
        assert "head: auto, 2 classes, 4 features" in shown
        assert f"sums: up to 17 ({_CENSUS}, what the columns are like, the products of columns, for a lift, " in shown
        assert "a lift competes: each of these stands once more with nystroem-axes 1024 beside the features" in shown
        assert "models are chosen among: ridge, global, lda, alone, global+lda, " in shown
        assert "threshold: 3 of 3 sites unmask a sum" in shown
        assert "refuses a sum of fewer than 3 sites" in shown
        done("federation", "enroll", fed, *sorted(tmp_path.glob("site-*/reply-*.json")))
        printed = told(fed)
        assert printed in capsys.readouterr().out
        for site in SITES:
            second = fed / "parcels" / f"{site}-2.json"
            assert enrollment.fingerprint_at(second) == printed
            done("federation", "accept", second, "--fingerprint", printed)
    finally:
        os.umask(before)
    capsys.readouterr()
    for site in SITES:
        opened = open_site(tmp_path / f"site-{site}")
        assert (opened.name, opened.address, opened.fingerprint) == (site, "fed.example.org:8443", printed)
        done("federation", "fingerprint", f"site-{site}")
        assert capsys.readouterr().out.strip() == printed
    for folder in (fed, *tmp_path.glob("site-*")):
        for path in (folder, *folder.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_key_is_its_owner_s_from_its_first_moment(fed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modes as they are while a file is being made, whatever the umask."""
    seen: dict[str, int] = {}
    made: list[str] = []
    real = os.open

    def watched(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        descriptor = real(path, flags, mode, **more)
        if flags & os.O_CREAT:
            assert flags & os.O_EXCL
            made.append(Path(path).name)
            seen[Path(path).name] = stat.S_IMODE(os.fstat(descriptor).st_mode)
            assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    before = os.umask(0)
    try:
        enrollment.accept_first(Parcel.read(fed / "parcels/a-1.json"), tmp_path / "site-a")
    finally:
        os.umask(before)
    assert any("key" in name for name in made)
    assert set(seen.values()) == {0o600}


def test_what_travels_holds_no_private_key(enrolled: Path, tmp_path: Path) -> None:
    secrets = [(tmp_path / f"site-{site}" / "key").read_bytes() for site in SITES]
    for name, data in files(enrolled).items():
        assert not any(secret.splitlines()[1] in data for secret in secrets), name
        assert b"OPENSSH PRIVATE" not in data, name


# Parcels


def change(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(values)


@pytest.mark.parametrize(
    ("edit", "again", "message"),
    [
        (change(address="evil.example.org:8443"), False, "it was altered or damaged on its way; get it again"),
        (change(agreement="x = 1"), False, "altered or damaged"),
        (change(agreement="x = 1"), True, "the agreement: there is no 'x'"),
        (change(agreement="\ud800"), True, "the agreement"),
        (change(authority="none"), True, "the authority is not a certificate"),
        (change(roster="{}"), True, "the roster: it has not the keys"),
        (change(site="z"), True, "has no site 'z'"),
        (change(site="../../a"), True, "has no site '../../a'"),
        (change(address="nowhere"), True, "it has no port"),
        (change(schema=0), True, "has schema 0, and this fedhip reads 1; use the same version on all machines"),
        (change(schema=True), True, "has schema True"),
        (change(fedhip="reply"), True, "is the reply of a site, and not a parcel of the coordinator's"),
        (change(fedhip=["parcel"]), True, "is not a parcel"),
        (change(more="x"), True, "has one too many"),
        (change(site=3), True, "lacks a part or has one too many"),
        (lambda content: content.pop("authority"), True, "lacks a part"),
    ],
)
def test_parcels_that_are_refused(
    fed: Path, tmp_path: Path, capsys: Capture, edit: Callable[[Any], None], again: bool, message: str
) -> None:
    """`again`: by somebody who made the checksum anew."""
    path = fed / "parcels" / "a-1.json"
    content = json.loads(path.read_text())
    edit(content)
    if again:
        content["sha256"] = _checksum(content)
    path.write_text(json.dumps(content))
    assert message in refused(capsys, "federation", "accept", path)
    assert [p.name for p in tmp_path.iterdir()] == ["fed"]


def archive(path: Path, kind: str) -> Path:
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("../../site-a/key", "x")
    else:
        with tarfile.open(path, "w") as tape:
            for name, link in (("../out", ""), ("link", "/etc/passwd")):
                member = tarfile.TarInfo(name)
                member.type, member.linkname = (tarfile.SYMTYPE if link else tarfile.REGTYPE), link
                tape.addfile(member, io.BytesIO())
    return path


def test_files_that_are_no_parcels(fed: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "deep").write_text("[" * 100_000)
    (tmp_path / "twice").write_text('{"fedhip": "parcel", "fedhip": "parcel"}')
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    before = set(tmp_path.iterdir())
    for path, message in (
        (archive(fed / "x.zip", "zip"), "is not a parcel of the coordinator's; give the file that was sent"),
        (archive(fed / "x.tar", "tar"), "is not a parcel"),
        (tmp_path / "deep", "is not a parcel"),
        (tmp_path / "twice", "is not a parcel"),
        (tmp_path / "bytes", "is not a parcel"),
        (tmp_path / "huge", "is larger than 32 MB"),
        (tmp_path / "none", "there is no file"),
        (fed, "is a folder; give the file that was sent"),
    ):
        assert message in refused(capsys, "federation", "accept", path)
    assert set(tmp_path.iterdir()) == before


def test_a_parcel_for_another_site(replied: Path, enrolled: Path, tmp_path: Path, capsys: Capture) -> None:
    first, second = replied / "parcels/b-1.json", replied / "parcels/b-2.json"
    assert "is for the site 'b', not for 'a'" in refused(capsys, "federation", "accept", first, "--name", "a")
    words = ("federation", "accept", second, "--out", tmp_path / "site-a", "--fingerprint", told(enrolled))
    assert "the parcel is for the site 'b', and" in refused(capsys, *words)
    assert not (tmp_path / "site-a" / "roster.json").exists()


def test_a_parcel_that_was_accepted(enrolled: Path, tmp_path: Path, capsys: Capture) -> None:
    before = files(tmp_path)
    line = refused(capsys, "federation", "accept", enrolled / "parcels/a-1.json")
    assert "was accepted there already, and its reply is" in line
    (tmp_path / "other").mkdir()
    for name in ("other", "fed/federation.toml"):
        line = refused(capsys, "federation", "accept", enrolled / "parcels/a-1.json", "--out", tmp_path / name)
        assert "exists; choose another folder with --out" in line
    assert files(tmp_path) == before
    words = ("federation", "accept", enrolled / "parcels/a-2.json", "--fingerprint", told(enrolled))
    done(*words)
    before = files(tmp_path)
    assert "has accepted a roster already; its fingerprint: fedhip federation fingerprint" in refused(capsys, *words)
    assert files(tmp_path) == before


def test_a_failure_leaves_nothing(fed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrollment, "take_free_place", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(FileError, match="no space left"):
        enrollment.accept_first(Parcel.read(fed / "parcels/a-1.json"), tmp_path / "new" / "site-a")
    assert [path.name for path in tmp_path.iterdir()] == ["fed"]


def test_the_second_parcel_must_belong_to_the_first(enrolled: Path, tmp_path: Path, capsys: Capture) -> None:
    def refusal(parcel: Parcel) -> str:
        (tmp_path / "sent.json").write_text(parcel.to_text())
        line = refused(capsys, "federation", "accept", tmp_path / "sent.json", "--fingerprint", told(enrolled))
        assert not (tmp_path / "site-a" / "roster.json").exists()
        return line

    true = Parcel.read(enrolled / "parcels/a-2.json")
    assert true.roster is not None
    other = Parcel.read(made(tmp_path / "two") / "parcels/a-1.json")
    assert "another agreement than the first" in refusal(replace(true, agreement=replace(true.agreement, width=5)))
    assert "another authority than the first" in refusal(replace(true, authority=other.authority))
    stranger = make_site_key(tmp_path / "stranger")
    swapped = replace(true.roster, keys={**true.roster.keys, "a": stranger})
    assert "has another key of the site 'a' than the one in" in refusal(replace(true, roster=swapped))
    line = refused(
        capsys, "federation", "accept", enrolled / "parcels/a-2.json", "--out", "none", "--fingerprint", told(enrolled)
    )
    assert "accept the first parcel before the second" in line


# Fingerprints


def test_the_fingerprint_is_of_everything_that_is_agreed(enrolled: Path, tmp_path: Path) -> None:
    parcel = Parcel.read(enrolled / "parcels/a-2.json")
    assert parcel.roster is not None
    keys = parcel.roster.keys
    other = Parcel.read(made(tmp_path / "two") / "parcels/a-1.json")
    prints = {
        parcel.fingerprint,
        replace(parcel, roster=replace(parcel.roster, keys={**keys, "a": keys["b"], "b": keys["a"]})).fingerprint,
        replace(parcel, agreement=replace(parcel.agreement, deadline=599.0)).fingerprint,
        replace(parcel, authority=other.authority).fingerprint,
    }
    assert len(prints) == 4
    assert replace(parcel, site="b", address="elsewhere:1").fingerprint == parcel.fingerprint
    assert all(len(group) == 4 and group.isdigit() for group in parcel.fingerprint.split())
    assert len(parcel.fingerprint.split()) == 16
    assert fingerprint_of(parcel.agreement, parcel.roster, parcel.authority) == parcel.fingerprint


HERE = " ".join(f"{number:04d}" for number in range(1000, 1016))


def test_a_fingerprint_may_be_typed_in_any_grouping() -> None:
    for text in (HERE, f"  {HERE}\n", HERE.replace(" ", ""), HERE.replace(" ", "-"), HERE.replace("1 1", "11", 3)):
        require_fingerprint(text, HERE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HERE.replace("1002", "1020"), "group 3 differs from the fingerprint here; have it read again"),
        (HERE.replace("1002", "1020").replace("1015", "1051"), "groups 3, 16 differ"),
        (HERE.replace("1002", "10O2"), "group 3 is '10O2'; a fingerprint is 16 groups of 4 digits"),
        (HERE.replace("1002", "102"), "group 3 is '102'"),
        (HERE[5:], "60 digits were told, and there are 64"),
        ("", "0 digits were told"),
        ("yes", "'yes' is no fingerprint"),
        (HERE.replace("1", "2"), "16 of 16 groups differ from the fingerprint here: the two sites were given"),
        (HERE.replace("1000", "١٠٠٠"), "group 1 is"),
    ],
)
def test_a_fingerprint_that_is_not_the_one_here(text: str, message: str) -> None:
    with pytest.raises(SetupError) as error:
        require_fingerprint(text, HERE)
    assert message in str(error.value)
    assert "1002" not in str(error.value)  # what is here is not told: it would be typed instead


def test_a_mistyped_fingerprint_accepts_nothing(enrolled: Path, tmp_path: Path, capsys: Capture) -> None:
    groups = told(enrolled).split()
    groups[2] = f"{(int(groups[2]) + 1) % 10_000:04d}"
    before = files(tmp_path)
    words = ("federation", "accept", enrolled / "parcels/a-2.json")
    assert "group 3 differs" in refused(capsys, *words, "--fingerprint", " ".join(groups))
    assert "the fingerprint is needed, as the site 'b' tells it: give --fingerprint" in refused(capsys, *words)
    first = ("federation", "accept", enrolled / "parcels/a-1.json", "--fingerprint", told(enrolled))
    assert "is a first parcel, which has no fingerprint" in refused(capsys, *first)
    assert files(tmp_path) == before


def test_the_fingerprint_is_asked_for_at_a_terminal(
    enrolled: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    words = ("federation", "accept", enrolled / "parcels/c-2.json")
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert "no fingerprint was told; nothing was accepted" in refused(capsys, *words)
    monkeypatch.setattr("sys.stdin", Terminal(told(enrolled) + "\n"))
    done(*words)
    shown = capsys.readouterr().out
    assert "Call the site 'a', or another that you trust, but not the coordinator" in shown
    assert told(enrolled) not in shown
    assert open_site(tmp_path / "site-c").name == "c"


def test_where_there_is_no_fingerprint_yet(replied: Path, tmp_path: Path, capsys: Capture) -> None:
    for path, message in (
        (replied / "parcels/a-1.json", "the first parcel has no fingerprint"),
        (replied, "has no keys of the sites yet; run: fedhip federation enroll"),
        (tmp_path / "site-a", "has no roster yet: accept the coordinator's second parcel"),
        (tmp_path, "is no site's folder, no coordinator's folder and no parcel"),
    ):
        assert message in refused(capsys, "federation", "fingerprint", path)
    write_endpoint(replied, "fed.example.org:8443")
    for command in ("serve", "status"):
        assert "has no keys of the sites yet" in refused(capsys, "federation", command, replied)


# Replies


def test_replies_that_are_refused(replied: Path, tmp_path: Path, capsys: Capture) -> None:
    reply = {site: tmp_path / f"site-{site}" / f"reply-{site}.json" for site in SITES}
    parcel, key = Parcel.read(replied / "parcels/a-1.json"), read_private_key(tmp_path / "site-a" / "key")

    def written(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    content = json.loads(reply["a"].read_text())
    renamed = {**content, "site": "b"}
    renamed["sha256"] = _checksum(renamed)
    unsigned = {**content, "signature": "x"}
    unsigned["sha256"] = _checksum(unsigned)
    agreement = parcel.agreement
    elsewhere = replace(parcel, agreement=replace(agreement, name="other"))
    stranger = replace(parcel, site="z")
    another = replace(parcel, agreement=replace(agreement, width=5))
    b_with_key_of_a = written("twin", EnrollmentReply.to(replace(parcel, site="b"), key).to_text())
    before = files(replied)
    for replies, message in (
        ([reply["a"]], "there is no reply of 'b', 'c'; give the replies of all sites at once"),
        ([*reply.values(), reply["a"]], "there are two replies of the site 'a'"),
        ([reply["a"], b_with_key_of_a, reply["c"]], "the sites 'a' and 'b' have the same key"),
        ([written("1", json.dumps(renamed))], "altered or damaged on its way"),
        ([written("2", json.dumps(unsigned))], "altered or damaged on its way"),
        ([written("3", json.dumps({**content, "key": "x"}))], "the public key is not of the kind"),
        (
            [written("4", EnrollmentReply.to(elsewhere, key).to_text())],
            "is a reply to the federation 'other', not 'study'",
        ),
        ([written("5", EnrollmentReply.to(stranger, key).to_text())], "is of 'z', which is no site"),
        ([written("6", EnrollmentReply.to(another, key).to_text())], "the site 'a' accepted another agreement"),
        ([replied / "parcels/a-1.json"], "is a parcel of the coordinator's, and not the reply of a site"),
        ([tmp_path / "site-a" / "key"], "is not the reply of a site"),
        ([tmp_path / "none"], "there is no file"),
    ):
        assert message in refused(capsys, "federation", "enroll", replied, *replies)
        assert files(replied) == before
    done("federation", "enroll", replied, *reply.values())
    assert "exists: the sites are enrolled" in refused(capsys, "federation", "enroll", replied, *reply.values())


def test_an_enrolment_that_breaks_off_leaves_nothing_and_can_be_done_again(
    replied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = sorted(tmp_path.glob("site-*/reply-*.json"))
    before = files(replied)
    real = utils_files.write_private

    def full(path: Path, data: bytes) -> None:
        if path.name == "roster.json":
            raise OSError(28, "No space left on device")
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(utils_files, "write_private", full)
        with pytest.raises(OSError, match="No space"):
            enrollment.enroll(replied, replies)
    assert files(replied) == before
    (replied / "parcels/a-2.json").write_text("of a process that was killed")
    enrollment.enroll(replied, replies)
    assert Parcel.read(replied / "parcels/a-2.json").roster is not None


def test_a_first_parcel_is_no_second(fed: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="this is a first parcel"):
        enrollment.accept_second(Parcel.read(fed / "parcels/a-1.json"), tmp_path, str)


# Words


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"beta": "gcv", "columns": "plain"}, f"sums: 2 ({_CENSUS}, the statistics)"),
        (
            {"head": "ridge", "prior": "client"},
            f"sums: 5 ({_CENSUS}, what the columns are like, the statistics, which β is best, priors)",
        ),
        ({"head": "lda"}, f"sums: 3 ({_CENSUS}, what the columns are like, the statistics)"),
        (
            {"head": "lda", "prior": "client", "columns": "plain"},
            f"sums: 5 ({_CENSUS}, the statistics, a temperature, the scores' scale, priors)",
        ),
        (
            {"head": "logistic"},
            f"sums: up to 10 ({_CENSUS}, what the columns are like, the statistics, a temperature, 5 of gradients, a "
            "penalty)",
        ),
        (
            {"head": "logistic", "gradient_rounds": 1, "columns": "plain"},
            f"sums: up to 4 ({_CENSUS}, the statistics, a temperature, gradients)",
        ),
        ({"secure_sum": False}, "masks: none; the server sees what each site sends"),
    ],
)
def test_an_agreement_in_words(settings: dict[str, Any], line: str) -> None:
    told: dict[str, Any] = {"name": "study", "sites": SITES, "classes": ["x", "y"], "width": 4, **settings}
    agreement = draft(**told)
    assert line in in_words(agreement, enrollment.safe_policy(agreement), "a")
