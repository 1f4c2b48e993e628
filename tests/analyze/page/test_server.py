"""The report served on 127.0.0.1 to whoever has the address and nobody else; the timeline to Perfetto."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")
pytest.importorskip("jinja2")

from tests.analyze.as_data import report
from tests.analyze.fake_run import make_run

from rlprof_ops.analyze import viewing
from rlprof_ops.analyze.browser import open_in_browser
from rlprof_ops.analyze.page.server import ReportServer
from rlprof_ops.analyze.timeline.make import make


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"), ranks=2)
    report(folder, form="json", jobs=1, cache=False)
    return folder


@pytest.fixture
def server(run: Path) -> Iterator[ReportServer]:
    with ReportServer(run) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield serving
        serving.shutdown()


def get(
    server: ReportServer, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, bytes, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


def test_the_address_shows_the_report_and_its_numbers(server: ReportServer) -> None:
    status, _, headers = get(server, f"/{server.token}/")
    assert (status, headers["Location"]) == (303, "report.html")
    status, page, headers = get(server, f"/{server.token}/report.html")
    assert status == 200 and b"What stands out" in page and headers["Referrer-Policy"] == "no-referrer"
    assert "Set-Cookie" not in headers and headers["Cache-Control"] == "no-store"
    status, numbers, _ = get(server, f"/{server.token}/report.json")
    assert status == 200 and numbers.startswith(b'{"schema"')
    assert get(server, f"/{server.token}/report.json", method="HEAD")[1] == b""


@pytest.mark.parametrize(
    "path",
    ["/", "/report.html", "/wrong/report.html", "/{t}", "/{t}x/report.html", "/{t}/run.json",
     "/{t}/../run.json", "/{t}/%2e%2e/run.json", "/{t}//etc/passwd", "/{t}/report.html/", "/?token={t}",
     "/{t}/timeline.ranks.zip"],
)  # fmt: skip
def test_without_the_whole_address_there_is_nothing(server: ReportServer, path: str) -> None:
    status, body, _ = get(server, path.format(t=server.token))
    assert status == 404 and b"rlprof report --serve" in body and b"What stands out" not in body


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example:{p}", 404),
        ("127.0.0.1.evil.example", 404),
        ("localhost:{p}", 200),
        ("127.0.0.1:9", 200),
    ],
)
def test_a_site_whose_name_points_here_gets_nothing(server: ReportServer, host: str, status: int) -> None:
    """A tunnel may have another port on the other side, so the port is free."""
    path = f"/{server.token}/report.html"
    assert get(server, path, host.format(p=server.port))[0] == status


def test_it_listens_on_loopback_only_and_with_a_new_address_each_time(run: Path) -> None:
    with ReportServer(run) as one, ReportServer(run) as two:
        assert one.server_address[0] == two.server_address[0] == "127.0.0.1"
        assert one.token != two.token and len(one.token) >= 32


def test_the_ssh_line_is_one_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "n7")
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    for name in ("SLURM_JOB_ID", "SLURM_SUBMIT_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert viewing.advice(8000, "u")[-1].strip() == "ssh -N -L 127.0.0.1:8000:127.0.0.1:8000 ada@n7"
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_SUBMIT_HOST", "login1")
    assert "-J ada@login1 ada@n7" in viewing.advice(8000, "u")[-1]


def test_open_where_there_is_no_browser_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    open_in_browser("http://127.0.0.1:1/")
    assert "rlprof report --serve JOB" in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted(run: Path) -> None:
    line = [sys.executable, "-m", "rlprof_ops", "report", "--serve", str(run), "--no-timeline"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        # A shell that runs these tests in its background lets them ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    try:
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in range(4))
        port, path = re.search(r"http://127\.0\.0\.1:(\d+)(/\S+/)", said).groups()  # type: ignore[union-attr]
        assert "ssh -N -L" in said
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        connection.request("GET", path + "report.html")
        assert connection.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_port_that_is_taken_is_one_line(server: ReportServer, run: Path) -> None:
    line = [
        sys.executable,
        "-m",
        "rlprof_ops",
        "report",
        "--serve",
        str(run),
        "--port",
        str(server.port),
        "--no-timeline",
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and f"cannot listen on 127.0.0.1:{server.port}" in done.stderr
    assert "Traceback" not in done.stderr


class _Perfetto(BaseHTTPRequestHandler):
    """What a Perfetto does with who opened it: it answers PING and takes one buffer."""

    PAGE = b"""<script>addEventListener("message", e => { if (e.data === "PING") e.source.postMessage("PONG",
      e.origin); else if (e.data.perfetto) document.title = [e.data.perfetto.buffer.byteLength,
      e.data.perfetto.fileName, e.origin].join(" "); });</script>"""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.PAGE)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.chromium
def test_the_timeline_is_handed_to_perfetto(run: Path, tmp_path: Path) -> None:
    """The protocol of ui.perfetto.dev (PING until PONG, then the buffer), with a page of ours in its place:
    no test reaches the real one.
    """
    pytest.importorskip("selenium")
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait
    from tests.analyze.page.test_page import chromium

    make(run, None, 1)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Perfetto) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        perfetto = f"http://localhost:{other.server_address[1]}"
        with ReportServer(run, perfetto=perfetto) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            browser = chromium(tmp_path / "chromium")
            try:
                browser.get(server.url)
                browser.find_element(By.LINK_TEXT, "open it in Perfetto").click()
                names = [e.get_attribute("data-file") for e in browser.find_elements(By.TAG_NAME, "button")]
                assert names == ["timeline.overview.pftrace", "timeline.ranks.zip"]
                mine = browser.current_window_handle
                browser.find_element(By.TAG_NAME, "button").click()
                browser.switch_to.window(mine)
                WebDriverWait(browser, 120).until(
                    lambda b: "Handed over" in b.find_element(By.ID, "said").text
                )
                tab = next(handle for handle in browser.window_handles if handle != mine)
                browser.switch_to.window(tab)
                size = (run / "timeline.overview.pftrace").stat().st_size
                expected = f"{size} timeline.overview.pftrace http://127.0.0.1:{server.port}"
                WebDriverWait(browser, 120).until(lambda b: b.title == expected)
            finally:
                browser.quit()
                server.shutdown()
                other.shutdown()
