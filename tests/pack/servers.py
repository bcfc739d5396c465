"""Servers for tests, on 127.0.0.1 and with an end: nginx, one that speaks S3, and a bad line."""

from __future__ import annotations

import contextlib
import http.client
import os
import pwd
import re
import shutil
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

NGINX = """daemon off; user {3}; pid {0}/pid; error_log {0}/error.log;
worker_processes 1;
events {{}}
http {{
  access_log {0}/access.log;
  client_body_temp_path {0}/b; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f;
  uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;
  server {{
    listen 127.0.0.1:{1}; root {2};
    location /hidden/ {{ return 403; }}
    location /elsewhere/ {{ return 302 http://127.0.0.1:{1}/; }}
  }}
}}
"""


@dataclass
class Nginx:
    """A running nginx: its address and what it was asked for."""

    address: str
    port: int
    folder: Path
    seen: int = 0
    calls: int = 0

    def requests(self) -> list[tuple[str, int, int]]:
        """(path, status, bytes of the body) of each request since the last call."""
        self.calls += 1
        mark = f"/mark-{self.calls} "
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        link.request("GET", mark.strip())  # the one worker logs what came before it first
        link.getresponse().read()
        link.close()
        for _ in range(200):
            text = (self.folder / "access.log").read_text()
            if mark in text:
                break
            time.sleep(0.02)
        lines = text.splitlines()
        new, self.seen = lines[self.seen :], len(lines)
        found = [re.search(r'"[A-Z]+ (\S+) HTTP/1.1" (\d+) (\d+)', line) for line in new]
        rows = [(match[1], int(match[2]), int(match[3])) for match in found if match]
        return [row for row in rows if not row[0].startswith("/mark-")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def run_nginx(root: Path, folder: Path) -> Iterator[Nginx]:
    """Serve a folder."""
    binary = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if binary is None:
        pytest.skip("nginx is not installed (apt install nginx-light)")
    folder.mkdir(parents=True)
    owner = pwd.getpwuid(os.getuid()).pw_name
    port = free_port()
    (folder / "nginx.conf").write_text(NGINX.format(folder, port, root, owner))
    (folder / "access.log").touch()
    process = subprocess.Popen(
        [binary, "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.PIPE
    )
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield Nginx(f"http://127.0.0.1:{port}", port, folder)
    finally:
        process.terminate()
        process.wait(10)
        assert process.stderr is not None
        process.stderr.close()


@dataclass
class Line:
    """A proxy that passes one request a connection on to a port, and misbehaves when told to.

    `drops` answers are cut after `after` bytes; `errors` are answered with `status` instead.
    `heads` are the requests that came.
    """

    target: int
    port: int = 0
    drops: int = 0
    after: int = 1500
    errors: int = 0
    status: str = "503 Service Unavailable"
    heads: list[bytes] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            more = client.recv(65536)
            if not more:
                return
            head += more
        self.heads.append(head)
        if self.errors:
            self.errors -= 1
            text = f"HTTP/1.1 {self.status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            client.sendall(text.encode())
            return
        left = None
        if self.drops:
            self.drops -= 1
            left = self.after
        with socket.create_connection(("127.0.0.1", self.target), timeout=10) as upstream:
            head = re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head)
            upstream.sendall(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            while part := upstream.recv(65536):
                if left is not None and len(part) >= left:
                    client.sendall(part[:left])
                    return
                client.sendall(part)
                left = None if left is None else left - len(part)


@contextmanager
def run_line(target: int) -> Iterator[Line]:
    line = Line(target)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                line.serve(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        line.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield line
        finally:
            server.shutdown()
            thread.join()
