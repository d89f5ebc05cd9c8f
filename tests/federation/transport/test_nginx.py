"""The configuration of nginx: well formed, and as strict as our own proxy. (No nginx is needed to read it.)"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedhip.federation.errors import EngineError
from fedhip.federation.transport.nginx import ProxyRoute, configuration
from fedhip.federation.transport.proxy import ALLOWED, Limits

DOOR = ProxyRoute(8443, 40000, Path("/f/server.pem"), Path("/f/server.key"), Path("/f/ca.crt"), ("example.org",))
_TOKEN = re.compile(r'\s+|#[^\n]*|"(?:[^"\\]|\\.)*"|[{};]|[^\s{};"]+')


def parse(text: str) -> list[Any]:
    """nginx's grammar: words until `;` are a directive, words until `{` open a block. Everything must fit it."""
    end = 0
    tokens = []
    for match in _TOKEN.finditer(text):
        assert match.start() == end, text[end:]
        end = match.end()
        if match.group().strip() and not match.group().startswith("#"):
            tokens.append(match.group())
    assert end == len(text)

    def block(depth: int) -> list[Any]:
        found: list[Any] = []
        words: list[str] = []
        while tokens:
            word = tokens.pop(0)
            if word == ";":
                assert words, "a directive without a name"
                found.append(tuple(words))
                words = []
            elif word == "{":
                found.append((*words, block(depth + 1)))
                words = []
            elif word == "}":
                assert depth, "a bracket too many"
                assert not words, f"no semicolon after {words}"
                return found
            else:
                words.append(word)
        assert not depth, "a bracket too few"
        assert not words
        return found

    return block(0)


def inside(tree: list[Any], *path: str) -> list[Any]:
    for name in path:
        tree = next(
            entry[-1] for entry in tree if " ".join(map(str, entry[:-1])) == name and isinstance(entry[-1], list)
        )
    return tree


def test_it_is_well_formed_and_lets_only_sites_through() -> None:
    tree = parse(configuration(DOOR))
    server = inside(tree, "http", "server")
    assert ("listen", "8443", "ssl") in server
    assert ("ssl_protocols", "TLSv1.2", "TLSv1.3") in server
    assert ("client_max_body_size", str(Limits().body)) in server
    locations = {entry[1]: entry[2] for entry in server if entry[0] == "location"}
    assert locations["/"] == [("return", "404")]
    assert set(locations) == {"/", "/v1/fleet/"}
    fleet = locations["/v1/fleet/"]
    assert ("proxy_pass", "https://127.0.0.1:40000") in fleet
    assert ("proxy_ssl_verify", "on") in fleet
    assert inside(fleet, "if ($request_method != POST)") == [("return", "404")]
    condition = next(entry for entry in fleet if entry[:2] == ("if", "($request_uri"))
    assert condition[2] == "!~"
    pattern = condition[3].removeprefix('"').partition('"')[0]
    for path in ("/v1/fleet/get-run", "/v1/fleet/", "/v1/fleet/../control/x", "/v1/fleet/get-run?x", "/v1/fleet/a%2fb"):
        assert bool(re.search(pattern, path)) == bool(ALLOWED.fullmatch(path.encode()))


def test_a_path_that_nginx_would_misread_is_refused() -> None:
    with pytest.raises(EngineError, match="without blanks"):
        configuration(ProxyRoute(1, 2, Path("/a b/c"), DOOR.key, DOOR.authority, ("x",)))
    with pytest.raises(EngineError):
        configuration(ProxyRoute(1, 2, Path("/a;include/c"), DOOR.key, DOOR.authority, ("x",)))
