"""The metrics endpoints of vLLM and SGLang servers of this node's job: Prometheus text, read over loopback.

A server is found by what our adapter has left in the node folder, by its command line and the port in it, or
by RLPROF_ENGINES, a list of URLs.
"""

from __future__ import annotations

import http.client
import os
import re
import time
import urllib.request
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from rlprof_ops import env_names
from rlprof_ops.host import processes
from rlprof_ops.recorder.samples.family_work import FamilyWork
from rlprof_ops.runtime import marks

_SERVER = re.compile(r"vllm\.entrypoints|vllm\0serve|sglang\.launch_server|bin/vllm\0|sglang_router")
_PORT = re.compile(r"\0--port(?:\0|=)(\d{2,5})(?:\0|$)")
_DEFAULT_PORT = {"vllm": 8000, "sglang": 30000}
_SEARCH_S = 15.0
_TIMEOUT_S = 0.5
IDLE_S = 5.0
_MOST_BYTES = 1 << 20
_MOST = 2.0**53  # of a figure; "+Inf" is one, too
_TOLD = re.compile(r"(\d+)" + re.escape(marks.ENGINE_SUFFIX))
_URL = re.compile(r"http://(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}/metrics")
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)

# What both call a figure; several series of one name (models, engines) are added, shares are not.
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_CACHE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions", "sglang:num_retracted_reqs")
_TOKENS = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
_PROMPT = ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total")


@dataclass(frozen=True)
class EngineSample:
    """One look at one server. `idle_s`: for how long it has made no token and taken no prompt; looked at more
    closely from IDLE_S on: `cores` its processes compute, and `stopped` is one of them that SIGSTOP holds.
    `silent`: it runs and answers no more, and the other figures are its last ones; or it never told any, and
    then it is a sample only while `stopped`. `pid` 0: not known. `made`, `prompted`: the tokens and those of
    prompts that it has told of in all.
    """

    url: str
    running: int
    waiting: int
    cache_permille: int
    preemptions: int
    tokens_s: float
    prompt_tokens_s: float
    pid: int = 0
    idle_s: float = 0.0
    cores: float = 0.0
    stopped: int = 0
    silent: int = 0
    made: float = 0.0
    prompted: float = 0.0


@dataclass
class _Server:
    """What is kept of a server between two looks."""

    pid: int = 0
    sample: EngineSample | None = None
    t_s: float = 0.0
    made: float = 0.0
    taken: float = 0.0
    moved_s: float = 0.0
    searched_s: float = 0.0
    held: int = 0
    held_s: float = 0.0
    work: FamilyWork = field(default_factory=FamilyWork)


class Engines:
    """The servers of this node. Looking is bounded; one that does not answer is left out."""

    def __init__(self, proc: str = "/proc", urls: str | None = None, node_dir: Path | None = None) -> None:
        self._proc = proc
        self._told_in = node_dir / marks.FOLDER if node_dir is not None else None
        # A proxy of the site's knows nothing of a server of this node's.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._urls = tuple((os.environ.get(env_names.ENGINES, "") if urls is None else urls).split())
        self._found: dict[str, int] = {}
        self._searched = -_SEARCH_S
        self._servers: dict[str, _Server] = {}

    def look(self) -> list[EngineSample]:
        now = time.monotonic()
        if now - self._searched >= _SEARCH_S:
            self._searched = now
            self._found = {**dict.fromkeys(self._urls, 0), **self._search()}
        told = self._told()
        ports = {urlsplit(url).port for url in told}
        # What told its address need not be found by its command line too, under another name of this machine.
        urls = told | {
            url: told.get(url) or pid
            for url, pid in self._found.items()
            if url in self._urls or urlsplit(url).port not in ports
        }
        self._servers = {url: self._servers.get(url) or _Server() for url in urls}
        for url, pid in urls.items():
            self._servers[url].pid = pid
        samples = (self._look_at(url, server) for url, server in self._servers.items())
        return [sample for sample in samples if sample is not None]

    def _told(self) -> dict[str, int]:
        """What servers that run have left: address -> pid."""
        if self._told_in is None:
            return {}
        found = {}
        try:
            for name in sorted(os.listdir(self._told_in)):
                told = _TOLD.fullmatch(name)
                if told and os.path.isdir(f"{self._proc}/{told[1]}"):
                    url = (self._told_in / name).read_text(errors="replace").strip()
                    found[url] = int(told[1])
        except OSError:
            return {}
        return {url: pid for url, pid in found.items() if _URL.fullmatch(url)}

    def _search(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for path in Path(self._proc).glob("[0-9]*/cmdline"):
            try:
                if path.parent.stat().st_uid != os.getuid():
                    continue
                words = path.read_bytes().decode("utf-8", "replace")
            except OSError:
                continue
            if _SERVER.search(words):
                port = _PORT.search(words)
                kind = "sglang" if "sglang" in words else "vllm"
                url = f"http://127.0.0.1:{port[1] if port else _DEFAULT_PORT[kind]}/metrics"
                pid = int(path.parent.name)
                found[url] = min(pid, found.get(url, pid))  # of a server and its children
        return found

    def _look_at(self, url: str, server: _Server) -> EngineSample | None:
        sample = self._sample(url, server)
        if sample is None and server.sample is not None and processes.state_of(server.pid) not in ("", "Z"):
            sample = replace(server.sample, tokens_s=0.0, prompt_tokens_s=0.0, silent=1)
        server.sample = sample
        now = time.monotonic()
        if sample is None:
            return self._without_figures(url, server, now)
        if now - server.moved_s < IDLE_S:
            return sample
        if server.pid:
            server.work.look(server.pid)
        idle_s, cores = round(now - server.moved_s, 1), round(server.work.cores, 2)
        return replace(sample, idle_s=idle_s, cores=cores, stopped=_stopped(server.pid))

    def _without_figures(self, url: str, server: _Server, now: float) -> EngineSample | None:
        """Of a server that tells none, as verl's by default: one of its processes that is stopped, since then
        it makes no token.
        """
        if now - server.searched_s >= IDLE_S:
            server.searched_s, before = now, server.held
            server.held = _stopped(server.pid)
            server.held_s = server.held_s if server.held == before else now
        if not server.held:
            return None
        idle_s = round(now - server.held_s, 1)
        return EngineSample(url, 0, 0, 0, 0, 0.0, 0.0, server.pid, idle_s, stopped=server.held, silent=1)

    def _sample(self, url: str, server: _Server) -> EngineSample | None:
        try:
            with self._opener.open(url, timeout=_TIMEOUT_S) as answer:
                text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError, http.client.HTTPException):  # something else may answer there
            return None
        figures = parse(text)
        if not figures:
            return None
        now = time.monotonic()
        # A counter that an answer leaves out stands still; one that fell would be an engine that began anew.
        made, taken = _first(figures, _TOKENS, server.made), _first(figures, _PROMPT, server.taken)
        begun = server.t_s > 0
        tokens, prompts = (made - server.made, taken - server.taken) if begun else (0.0, 0.0)
        seconds = max(now - server.t_s, 1e-3)
        running, waiting = int(_first(figures, _RUNNING)), int(_first(figures, _WAITING))
        if tokens or prompts or not begun:
            server.moved_s = now
        server.t_s, server.made, server.taken = now, made, taken
        return EngineSample(
            url,
            running,
            waiting,
            round(1000 * min(1.0, _first(figures, _CACHE))),
            int(_first(figures, _PREEMPTIONS)),
            max(0.0, tokens) / seconds,
            max(0.0, prompts) / seconds,
            server.pid,
            made=made,
            prompted=taken,
        )


def _stopped(pid: int) -> int:
    """A process of the server with this pid that SIGSTOP holds; 0 for none."""
    family = processes.with_descendants(pid, of_all_threads=True) if pid else []
    return next((each for each in family if processes.state_of(each) == "T"), 0)


def parse(text: str) -> dict[str, float]:
    """The figures of engines in an endpoint's text, by name; a share is the largest of its series.

    prometheus_client's parser takes 18 times as long (45 ms of 800 lines), and need not be installed here.
    """
    found: dict[str, float] = {}
    for name, number in _LINE.findall(text):
        if name.startswith(("vllm:", "sglang:")):
            try:
                value = float(number)
            except ValueError:
                continue
            if abs(value) < _MOST:
                found[name] = (
                    max(found.get(name, 0.0), value) if name in _CACHE else found.get(name, 0.0) + value
                )
    return found


def _first(figures: dict[str, float], names: tuple[str, ...], without: float = 0.0) -> float:
    return next((figures[name] for name in names if name in figures), without)
