"""Headless Chromium over its debugging pipe: no driver, no network, no packages.

Messages are JSON with a NUL behind, on file descriptors 3 (to the browser) and 4 (from it), as
--remote-debugging-pipe has it.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser():
    """The path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _pipe():
    """Its ends, neither of them 3 or 4, which the browser's own will be."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high


class Browser:
    """A tab. `errors` holds what went wrong in it: console errors, exceptions, failed loads."""

    def __init__(self, path):
        self.errors, self._buffer, self._last = [], b"", 0
        self._home = tempfile.TemporaryDirectory(prefix="browser", ignore_cleanup_errors=True)
        theirs_in, self._to = _pipe()
        self._from, theirs_out = _pipe()
        flags = (
            "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-extensions "
            "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
            f"--disable-sync --remote-debugging-pipe --user-data-dir={self._home.name}"
        )
        nothing = [(os.POSIX_SPAWN_OPEN, std, os.devnull, os.O_RDWR, 0) for std in (0, 1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4)]
        self._pid = os.posix_spawn(
            path, [path, *flags.split(), "about:blank"], os.environ,
            file_actions=[*nothing, *pipes], setsid=True,
        )  # fmt: skip
        for end in (theirs_in, theirs_out):
            os.close(end)
        target = self.ask("Target.createTarget", url="about:blank", session=None)["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True, session=None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method, *, session="own", **params):
        """Send a command and wait for its answer; what happens meanwhile is noted."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if session == "own":
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (got := self._receive()).get("id") != self._last:
            self._note(got)
        if "error" in got:
            raise RuntimeError(f"{method}: {got['error']}")
        return got["result"]

    def open(self, path, *, width, dark):
        """Show a file at a width in pixels, light or dark."""
        self.errors.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 60
        while self.run("document.readyState") != "complete":
            assert time.monotonic() < deadline, f"{path} does not load"
            time.sleep(0.02)

    def run(self, script):
        """The value of an expression on the page."""
        got = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def screenshot(self, path):
        """The whole page as a PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        got = self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(got["data"]))

    def close(self):
        os.close(self._to)  # which ends it
        deadline = time.monotonic() + 10
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                break
            time.sleep(0.02)
        os.close(self._from)
        self._home.cleanup()

    def _receive(self):
        deadline = time.monotonic() + 60
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self._from, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        method, told = event.get("method", ""), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.errors.append(str(told["args"]))
        elif method == "Network.loadingFailed":
            self.errors.append(f"not loaded: {told['errorText']}")
