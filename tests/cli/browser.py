"""A headless Chromium through its debugging pipe, with the standard library alone: pages are opened at a size and a
colour scheme, asked questions, photographed, and everything that they complain about is collected."""
import base64
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

# With a code, a key does what the browser itself does by it: it moves the focus, or a slider.
KEY_CODES = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowRight": 39}
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser():
    """Path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    def __init__(self, seconds=120):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read_ours, write_theirs = os.pipe()
        read_theirs, write_ours = os.pipe()
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (read_theirs, write_theirs)]

        def as_3_and_4():  # where --remote-debugging-pipe looks
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        command = [find_browser(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
                   "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(command, pass_fds=(3, 4), preexec_fn=as_3_and_4, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        for fd in (read_theirs, write_theirs, *theirs):
            os.close(fd)
        self.input, self.output = os.fdopen(write_ours, "wb"), os.fdopen(read_ours, "rb", buffering=0)
        self.last, self.rest, self.events, self.seconds = 0, b"", [], seconds
        signal.signal(signal.SIGALRM, self._too_late)

    def _too_late(self, *_):
        raise TimeoutError("the browser did not answer")

    def _receive(self):
        while b"\0" not in self.rest:
            part = self.output.read(1 << 16)
            if not part:
                raise EOFError("the browser has ended")
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, session=None, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        signal.alarm(self.seconds)
        self.input.write(json.dumps(message).encode() + b"\0")
        self.input.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self.last:
                signal.alarm(0)
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def close(self):
        try:
            self.send("Browser.close")
        except (EOFError, OSError, TimeoutError):
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.profile.cleanup()


class Page:
    """A file, or the page of an address, in a tab of its own, from its first byte on."""

    def __init__(self, browser, file, width=1280, height=900, dark=False):
        self.browser = browser
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.url = file if str(file).startswith("http://") else pathlib.Path(file).resolve().as_uri()
        self.send("Page.navigate", url=self.url)
        self.evaluate("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))")
        self.settle()

    def send(self, method, **parameters):
        return self.browser.send(method, self.session, **parameters)

    def settle(self):
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, script):
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:500])
        return answer["result"].get("value")

    def _events(self, method):
        return [e["params"] for e in self.browser.events if e.get("sessionId") == self.session and e["method"] == method]

    def complaints(self):
        """Console messages, errors and violations of the page's own policy: none is a good page."""
        said = [str([a.get("value", a.get("description")) for a in e["args"]]) for e in self._events("Runtime.consoleAPICalled")]
        thrown = [e["exceptionDetails"].get("exception", {}).get("description", e["exceptionDetails"]["text"])
                  for e in self._events("Runtime.exceptionThrown")]
        logged = [f"{e['entry']['level']}: {e['entry']['text']}" for e in self._events("Log.entryAdded")]
        return list(dict.fromkeys(said + thrown + logged))

    def requests(self):
        """Addresses that the page asked for in addition to its own."""
        asked = [e["request"]["url"] for e in self._events("Network.requestWillBeSent")]
        return [url for url in asked if url.split("#")[0] != self.url]

    def mouse(self, kind, x, y, **more):
        """As a hand does it, at a place of the window: mousePressed, mouseMoved, mouseReleased, mouseWheel."""
        pressed = {"button": "left", "clickCount": 1} if kind != "mouseWheel" else {}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **{**pressed, **more})

    def touch(self, kind, *points):
        """Fingers at places of the window: touchStart, touchMove, touchEnd."""
        self.send("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)])

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=KEY_CODES.get(key, 0),
                      **({"text": key} if len(key) == 1 and kind == "keyDown" else {}))

    def saved(self, act):
        """What the page saves as a file when a script acts: its name and text."""
        return self.evaluate("new Promise(done => { const own = save; save = (name, blob) => { save = own; blob.text().then((text) => done([name, text])); };"
                             f"{act}; }})")

    def screenshot(self, file, height=None, part=None):
        """The whole page, or so many pixels of it, from the top or from the element of an id."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        top = self.evaluate(f"document.getElementById('{part}').getBoundingClientRect().top + scrollY") if part else 0
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip={
            "x": 0, "y": top, "width": size["width"], "height": min(height or size["height"], size["height"] - top), "scale": 1})
        pathlib.Path(file).write_bytes(base64.b64decode(picture["data"]))

    def close(self):
        self.browser.send("Target.closeTarget", targetId=self.target)
