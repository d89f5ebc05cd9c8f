"""The proxy in front of the server as a configuration for nginx, for those who already run one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedhip.federation.errors import EngineError
from fedhip.federation.transport.proxy import Limits

_ODD = set("\"'\\{};$#\n\r\t ")


@dataclass(frozen=True)
class ProxyRoute:
    """Where nginx listens and what stands behind."""

    port: int
    upstream_port: int
    certificate: Path
    key: Path
    authority: Path
    hosts: tuple[str, ...]


def configuration(route: ProxyRoute, limits: Limits | None = None) -> str:
    """A complete nginx.conf: the sites' calls pass, everything else is 404."""
    limits = limits or Limits()
    for path in (route.certificate, route.key, route.authority):
        if _ODD & set(str(path)):
            raise EngineError(f"nginx does not take the path {str(path)!r}; move the folder to one without blanks")
    return f"""\
# The door of a federation: the sites' calls pass, everything else is 404.
# The engine's control interface, which takes a secret, shares the port behind; it stays on loopback.
# Strangers are refused by the engine, after it has read their bodies; fedhip's own proxy refuses them at the head.
worker_processes auto;
events {{
    worker_connections {2 * limits.connections};
}}
http {{
    limit_conn_zone $binary_remote_addr zone=address:10m;
    server_tokens off;
    access_log off;

    server {{
        listen {route.port} ssl;
        server_name {" ".join(route.hosts)};
        ssl_certificate {route.certificate};
        ssl_certificate_key {route.key};
        ssl_protocols TLSv1.2 TLSv1.3;

        limit_conn address {limits.per_address};
        client_max_body_size {limits.body};
        client_header_timeout {limits.to_head:g}s;
        client_body_timeout {limits.stall:g}s;
        send_timeout {limits.stall:g}s;
        keepalive_timeout {limits.idle:g}s;
        large_client_header_buffers 4 {limits.head};

        location / {{
            return 404;
        }}
        # $request_uri is what was sent: nothing is decoded or tidied before it is compared.
        location /v1/fleet/ {{
            if ($request_method != POST) {{
                return 404;
            }}
            if ($request_uri !~ "^/v1/fleet/[a-z]+(-[a-z]+)*$") {{
                return 404;
            }}
            proxy_pass https://127.0.0.1:{route.upstream_port};
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Connection "";
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Proto "";
            proxy_set_header Forwarded "";
            proxy_ssl_verify on;
            proxy_ssl_name 127.0.0.1;
            proxy_ssl_trusted_certificate {route.authority};
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_read_timeout {limits.request:g}s;
            proxy_send_timeout {limits.stall:g}s;
        }}
    }}
}}
"""
