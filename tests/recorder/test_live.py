"""`rlprof top --serve`: a page for whoever has the address, which follows the job; in a real browser."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlprof_ops.host import atomic
from rlprof_ops.operate.live_server import LiveServer
from rlprof_ops.recorder.detect.anomaly import Anomaly
from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.news import News
from tests.recorder.simulated import BEGIN_NS, healthy

HOSTILE = "<img src=x onerror=alert(1)>"


def write(run: Path, steps: int) -> None:
    view = JobView("4711", ["n1", HOSTILE])
    for told in healthy(1, steps, ranks=2):
        view.take(News("n1", BEGIN_NS, None, (), (), (), tuple(told), (), {}))
    view.findings.append(Anomaly("slow_rank", f"rank 1 is slow {HOSTILE}", "x", BEGIN_NS))
    (run / "recorder").mkdir(exist_ok=True)
    atomic.write(run / "recorder" / "summary.json", json.dumps(view.summary()))  # read all the time


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    write(tmp_path, 5)
    with LiveServer(tmp_path, every_s=0.2) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield serving
        serving.shutdown()


def test_events_follow_the_summary(server: LiveServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", f"/{server.token}/events")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
    told = json.loads(answer.readline().removeprefix(b"data: "))
    assert "step 5" in told["lines"][0] and len(told["seconds"]) == 5
    write(server.run, 9)
    until = time.monotonic() + 60
    while "step 9" not in told["lines"][0] and time.monotonic() < until:
        line = answer.readline()
        told = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: ") else told
    assert "step 9" in told["lines"][0]
    connection.close()


def test_one_page_too_many_is_told_so(server: LiveServer) -> None:
    while server.viewers.acquire(blocking=False):
        pass
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", f"/{server.token}/events")
    answer = connection.getresponse()
    assert answer.status == 503 and b"close one" in answer.read()
    connection.close()


@pytest.mark.parametrize("path", ["/", "/events", "/wrong/events", "/{t}", "/{t}/summary.json", "/{t}/../x"])
def test_without_the_whole_address_there_is_nothing(server: LiveServer, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path.format(t=server.token))
    assert connection.getresponse().status == 404
    connection.request("GET", f"/{server.token}/", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 404


@pytest.mark.chromium
def test_the_page_follows_the_job_in_a_browser(server: LiveServer, tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    pytest.importorskip("msgspec")
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    from tests.analyze.page.test_page import chromium

    browser = chromium(tmp_path / "chromium")
    try:
        browser.get(server.url)
        wait = WebDriverWait(browser, 60)
        wait.until(lambda b: "step 5" in b.find_element(By.ID, "lines").text)
        shown = browser.find_element(By.ID, "tables").text
        assert "policy_worker" in shown and f"rank 1 is slow {HOSTILE}" in shown
        assert not browser.find_elements(By.TAG_NAME, "img"), "what a node tells is text"
        points = browser.find_element(By.ID, "steps").get_attribute("points")
        assert points is not None and len(points.split()) == 5
        write(server.run, 12)
        wait.until(lambda b: "step 12" in b.find_element(By.ID, "lines").text)
    finally:
        browser.quit()
