"""Another account on the server's machine calls the engine's control interface, to run its own code as who serves."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fedhip.federation.errors import EngineError
from fedhip.federation.operations.paths import StatePaths
from fedhip.federation.transport.control import Control
from fedhip.federation.transport.link import HEADER
from tests.federation.tiny import write_app
from tests.federation.transport.test_control import control, keys, place  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def stranger(control: Control, place: Path) -> Iterator[ControlHttpClient]:  # noqa: F811
    """A client of the engine's own, at the port that everybody on the machine can find."""
    client = ControlHttpClient.from_server_address(
        control.address,
        insecure=False,
        root_certificates=(place / "ca" / "ca.crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    yield client
    client.close()


def refused(error: pytest.ExceptionInfo[httpx.HTTPStatusError]) -> bool:
    return error.value.response.status_code == httpx.codes.UNAUTHORIZED


def test_a_run_with_an_app_of_its_own(stranger: ControlHttpClient, control: Control, tmp_path: Path) -> None:  # noqa: F811
    bundle = build_fab_from_disk(write_app(tmp_path / "tiny"))
    request = StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})))
    with pytest.raises(httpx.HTTPStatusError) as error:
        stranger.StartRun(request)
    assert refused(error)
    assert control.runs() == []


def test_a_key_of_its_own_and_what_runs(
    stranger: ControlHttpClient,
    control: Control,  # noqa: F811
    keys: dict[str, bytes],  # noqa: F811
) -> None:
    with pytest.raises(httpx.HTTPStatusError) as error:
        stranger.RegisterNode(RegisterNodeRequest(public_key=keys["a"], name="mine"))
    assert refused(error)
    with pytest.raises(httpx.HTTPStatusError) as error:
        stranger.ListRuns(ListRunsRequest())
    assert refused(error)
    assert control.nodes() == []


def test_another_secret(control: Control, place: Path, tmp_path: Path) -> None:  # noqa: F811
    guessed = tmp_path / "secret"
    guessed.write_bytes(b"guessed")
    port = int(control.address.rpartition(":")[2])
    with Control(port, place / "ca" / "ca.crt", guessed) as other, pytest.raises(EngineError, match="secret"):
        other.nodes()
    with pytest.raises(EngineError, match="as the user who serves"):
        Control(port, place / "ca" / "ca.crt", tmp_path / "none")


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/v1/control", "/v1/control/list-runs", "//v1/control/list-runs", "/v1/fleet"]
)
def test_whatever_does_not_check_its_callers(control: Control, place: Path, path: str) -> None:  # noqa: F811
    tls = ssl.create_default_context(cafile=str(place / "ca" / "ca.crt"))
    with httpx.Client(verify=tls, trust_env=False) as client:
        for headers in ({}, {HEADER: "0" * 64}, {HEADER: ""}):
            assert client.post(f"https://{control.address}{path}", headers=headers).status_code == 401
        assert client.get(f"https://{control.address}/health").status_code == 200


def test_the_secret_is_the_serving_user_s_alone(tmp_path: Path) -> None:
    state = StatePaths(tmp_path / "state")
    state.prepare()
    assert state.secret.stat().st_mode & 0o777 == 0o600
    assert state.path.stat().st_mode & 0o777 == 0o700
