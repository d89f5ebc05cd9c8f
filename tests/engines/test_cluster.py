"""What is refused before anything is computed: Ray that is not installed, clusters that are not there."""

from __future__ import annotations

import socket

import pytest

from fedhip.engines import cluster, engine_device, require_engine
from fedhip.errors import InputError, MissingExtraError


def test_ray_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"^--engine ray needs Ray; pip install 'fedhip\[ray\]'$"):
        require_engine("ray", None)
    require_engine("local", None)


def test_an_engine_that_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match=r"there is no engine 'spark'; choose local or ray"):
        require_engine("spark", None)


def test_a_cluster_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: object())
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        require_engine("ray", address)
    with pytest.raises(InputError, match=rf"no Ray cluster answers at {address} \(Connection refused\); start one"):
        require_engine("ray", address)
    for wrong in ("here", "host:", ":1", "host:0", "host:65536", "ray://host:1"):
        with pytest.raises(InputError, match="is no address of a Ray cluster; give HOST:PORT"):
            require_engine("ray", wrong)


def test_tasks_compute_on_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    gpu = torch.device("cuda")
    assert engine_device("local", gpu, None) == gpu
    assert engine_device("ray", gpu, None) == torch.device("cpu")
    with pytest.raises(InputError, match="tasks of a Ray cluster compute on processors; leave --device cuda out"):
        engine_device("ray", gpu, "cuda")


def test_a_task_has_room_for_its_matrices_and_rows() -> None:
    width, rows = 1280, 5000
    assert cluster.bytes_of_a_task(width, rows) > 8 * (2 * width**2 + 2 * width * rows)
    assert cluster.bytes_of_a_task(8, 20) < 2**30
