"""A real Chromium without a window, driven over its debugging pipe: no driver program, no further package."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
MISSING = "no Chromium is installed: apt-get install chromium"
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
)


def program() -> str | None:
    """Path of a Chromium; None if there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class BrowserError(AssertionError):
    """What the browser refused, or a script that raised."""


class Browser:
    """One browser with one page."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)
        self._numbers = itertools.count(1)
        self._rest = b""
        self.events: list[dict[str, Any]] = []
        """Everything that the page reported: exceptions, messages of the console, requests."""
        target = self._call("Target.createTarget", {"url": "about:blank"}, "")["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, "")["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """One command of the Chrome DevTools Protocol to the page."""
        return self._call(method, given, self._session)

    def _call(self, method: str, given: dict[str, Any], session: str) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": given} | ({"sessionId": session} if session else {})
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            said = self._hear()
            if said.get("id") == number:
                if "error" in said:
                    raise BrowserError(f"{method}: {said['error'].get('message')}")
                result: dict[str, Any] = said["result"]
                return result
            self.events.append(said)

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = self._read.read(1 << 16)
            if not piece:
                raise BrowserError("the browser is gone")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        said: dict[str, Any] = json.loads(line)
        return said

    def open(self, url: str) -> None:
        result = self.call("Page.navigate", url=url)
        if result.get("errorText"):
            raise BrowserError(f"{url}: {result['errorText']}")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        said = self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            allowUnsafeEvalBlockedByCSP=False,  # as any script of the page
        )
        if "exceptionDetails" in said:
            details = said["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description") or details["text"])
        return said["result"].get("value")

    def wait(self, condition: str, seconds: float = 30.0) -> None:
        """Until an expression is true, also across navigations."""
        script = (
            "new Promise((done, failed) => { const end = performance.now() + 1000; const look = () => {"
            f" let value = null; try {{ value = !!({condition}); }} catch (error) {{ value = null; }}"
            " if (value) done(value); else if (performance.now() > end) done(null);"
            " else setTimeout(look, 20); }; look(); })"
        )
        for _ in range(int(seconds) + 1):
            with suppress(BrowserError):  # the page was replaced while it was asked
                if self.run(script):
                    return
        raise BrowserError(f"never true: {condition}; the page says: {self.run('document.body.innerText')[:2000]}")

    def size(self, width: int, height: int, *, scale: float = 1.0, phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def scheme(self, name: str, *, reduced_motion: bool = True) -> None:
        """name: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        features += [{"name": "prefers-reduced-motion", "value": "reduce"}] if reduced_motion else []
        self.call("Emulation.setEmulatedMedia", features=features)

    def offline(self, is_offline: bool) -> None:
        self.call(
            "Network.emulateNetworkConditions",
            offline=is_offline,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )

    def key(self, name: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """What is seen, as PNG or WebP by the file's name; whole: of the whole page, however long."""
        kind = path.suffix[1:]
        given: dict[str, Any] = {"format": kind} | ({"quality": 90} if kind == "webp" else {})
        if whole:
            height = self.run("Math.ceil(document.documentElement.scrollHeight)")
            width = self.run("innerWidth")
            given |= {"captureBeyondViewport": True}
            given |= {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **given)["data"]))

    def troubles(self) -> list[str]:
        """Exceptions, refused requests and errors of the console so far."""
        found = []
        for said in self.events:
            method, given = said.get("method", ""), said.get("params", {})
            if method == "Runtime.exceptionThrown":
                details = given["exceptionDetails"]
                found.append(details.get("exception", {}).get("description") or details["text"])
            elif method == "Runtime.consoleAPICalled" and given["type"] == "error":
                found.append(" ".join(str(one.get("value", one.get("description"))) for one in given["args"]))
            elif method == "Log.entryAdded" and given["entry"]["level"] == "error":
                found.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for."""
        return [
            said["params"]["request"]["url"]
            for said in self.events
            if said.get("method") == "Network.requestWillBeSent"
        ]


@contextmanager
def started() -> Iterator[Browser]:
    """A browser with a profile of its own. Raises BrowserError without a Chromium."""
    found = program()
    if found is None:
        raise BrowserError(MISSING)
    with tempfile.TemporaryDirectory(prefix="longhaul-browser-", ignore_cleanup_errors=True) as folder:
        to_child, from_us = os.pipe()
        to_us, from_child = os.pipe()
        flags = [*FLAGS, f"--user-data-dir={folder}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        script = f'exec "$0" "$@" 3<&{to_child} 4>&{from_child}'
        process = subprocess.Popen(
            ["bash", "-c", script, found, *flags, "about:blank"],
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "HOME": folder},
        )
        os.close(to_child)
        os.close(from_child)
        browser = None
        try:
            browser = Browser(to_us, from_us)
            yield browser
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if browser is not None:
                browser._read.close()
                browser._write.close()
