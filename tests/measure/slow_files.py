"""A server of ranges of files, each after a wait, as a far or busy disk is.

It is a process of its own, so that it never holds the lock of the interpreter that is measured.

`slow_files.py FOLDER SECONDS` prints its port and serves until it is killed.
"""

import contextlib
import http.server
import re
import sys
import time
from functools import partial
from pathlib import Path


class SlowFiles(http.server.SimpleHTTPRequestHandler):
    """Waits before it sends a range."""

    protocol_version = "HTTP/1.1"
    wait_s = 0.0

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        begin, end = 0, len(data) - 1
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            begin, end = int(asked[1]), min(end, int(asked[2] or end))
            time.sleep(self.wait_s)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end}/{len(data)}")
        self.send_header("Content-Length", str(end - begin + 1))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # who asks for a file's length reads no further
            self.wfile.write(data[begin : end + 1])

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    SlowFiles.wait_s = float(sys.argv[2])
    handler = partial(SlowFiles, directory=sys.argv[1])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
