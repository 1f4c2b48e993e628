"""Random trees with writers at work, random names, records and manifests: nothing half, nothing lost, nothing
outside.

RLPROF_FUZZ_TREES=10000 makes the long run; the default is a sample of it.
"""

import hashlib
import json
import os
import random
import shutil
import string
import threading

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collect.harvest.test_harvest import SCHEMA
from tests.collect.runfolder import NSYS_FRAME, RunFolder

from rlprof_ops.backends import report_names
from rlprof_ops.collect.harvest.manifest import CaptureResult, Manifest, Report
from rlprof_ops.collect.harvest.run_harvest import harvest
from rlprof_ops.collect.sync.sent_log import Sent, SentLog
from rlprof_ops.collect.sync.sync_pass import Syncer
from rlprof_ops.host.contained_dir import UnsafeName, safe_parts
from rlprof_ops.request import plan, request_from_dict

FIRST, TREES = int(os.environ.get("RLPROF_FUZZ_FIRST", "0")), int(os.environ.get("RLPROF_FUZZ_TREES", "40"))
NAMES = [
    b"plain",
    b"new\nline",
    b"'\"",
    b"-dash",
    b"\xff\xfe",
    b"a b",
    b"$(x)",
    b"\xc3\xbc",
    b"x..",
    b"x" * 200,
    b"~",
    b"*?",
]


class Writers:
    """Threads that work on a node folder as training does: reports appear by rename, logs grow, some are
    rotated or truncated.
    """

    def __init__(self, rng, node):
        self.node = os.fsencode(node)
        self.plans = [
            (self.write_reports, rng.randrange(1 << 30)),
            (self.write_logs, rng.randrange(1 << 30)),
            (self.write_rubbish, rng.randrange(1 << 30)),
        ]
        self.finished = {}
        self.threads = [
            threading.Thread(target=work, args=(random.Random(seed),)) for work, seed in self.plans
        ]

    def folder(self, *parts):
        path = b"/".join((self.node, *parts))
        os.makedirs(path, exist_ok=True)
        return path

    def write_reports(self, rng):
        for number in range(rng.randrange(1, 12)):
            folder = self.folder(
                b"profiles",
                rng.choice((b"nsight", b"torch")),
                rng.choice(NAMES),
                b"rank%d" % rng.randrange(3),
            )
            data = rng.randbytes(rng.choice((0, 1, 100, 70_000)))
            name = rng.choice(NAMES) + b"%d" % number
            half = self.folder(b"tmp") + b"/half"
            with open(half, "wb") as stream:
                stream.write(data)
            self.finished[os.path.relpath(folder, self.node) + b"/" + name] = hashlib.sha256(data).hexdigest()
            os.rename(half, folder + b"/" + name)

    def write_logs(self, rng):
        folder = self.folder(b"ray", b"session_1", b"logs")
        for _ in range(rng.randrange(1, 15)):
            path = folder + b"/" + rng.choice((b"raylet.out", b"w-1.out"))
            action = rng.random()
            if action < 0.1 and os.path.exists(path):
                os.rename(path, path + b".%d" % rng.randrange(5))
            elif action < 0.2 and os.path.exists(path):
                os.truncate(path, 0)
            else:
                with open(path, "ab") as stream:
                    stream.write(rng.randbytes(rng.choice((1, 1000, 90_000))))

    def write_rubbish(self, rng):
        folder = self.folder(b"profiles", b"nsight")
        for number in range(rng.randrange(0, 6)):
            path = folder + b"/rubbish%d" % number
            kind = rng.randrange(3)
            if kind == 0:
                os.symlink(rng.choice((b"/etc/passwd", b"nowhere", b"..", b"/")), path)
            elif kind == 1:
                os.mkfifo(path)
            else:
                os.makedirs(path)


def visible(run, top):
    """Digest of every regular file below a folder of the run folder, as a reader sees it now."""
    seen = {}
    for folder, _, files in os.walk(os.fsencode(run) + b"/" + top):
        for name in files:
            path = folder + b"/" + name
            with open(path, "rb") as stream:
                seen[os.path.relpath(path, os.fsencode(run))] = hashlib.sha256(stream.read()).hexdigest()
    return seen


@pytest.mark.timeout(3600)
def test_random_trees_with_writers_at_work(tmp_path):
    for seed in range(FIRST, FIRST + TREES):
        rng = random.Random(seed)
        base = tmp_path / str(seed)
        node, run = base / "node", base / "run"
        node.mkdir(parents=True)
        run.mkdir()
        writers = Writers(rng, node)
        for thread in writers.threads:
            thread.start()
        syncer = Syncer(node, run, "n1", parallel=rng.choice((1, 4)))
        while any(thread.is_alive() for thread in writers.threads):
            syncer.pass_()
            for path, digest in visible(run, b"profiles").items():
                assert writers.finished[path] == digest, (seed, path)
            if rng.random() < 0.2:  # it was killed and started again
                syncer.close()
                syncer = Syncer(node, run, "n1")
        for thread in writers.threads:
            thread.join()
        report = syncer.pass_(last=True)
        syncer.close()
        assert report.complete, (seed, report)
        assert visible(run, b"profiles") == writers.finished, seed
        logs = {
            path: os.path.join(os.fsencode(run), b"ray/n1/session_1/logs", path)
            for path in os.listdir(node / "ray/session_1/logs")
            for path in [os.fsencode(path)]
        }
        for name, copy in logs.items():
            with (
                open(os.fsencode(node) + b"/ray/session_1/logs/" + name, "rb") as source,
                open(copy, "rb") as stream,
            ):
                assert source.read() == stream.read(), (seed, name)
        assert not any(path.is_file() for path in (run / ".sync").rglob("*"))
        shutil.rmtree(base)


@settings(deadline=None)
@given(st.text())
def test_paths_that_pass_stay_below_their_folder(text):
    try:
        parts = safe_parts(text)
    except UnsafeName:
        return
    assert os.path.normpath("/base/" + "/".join(parts)).startswith("/base/")


FILE_NAMES = (
    st.binary(min_size=1, max_size=80)
    .filter(lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b".."))
    .map(os.fsdecode)
)
SMALL = st.integers(0, 50)


@given(
    st.dictionaries(
        FILE_NAMES,
        st.builds(
            Sent,
            target=FILE_NAMES,
            size_bytes=SMALL,
            mtime_ns=SMALL,
            inode=SMALL,
            sha256=st.none(),
            removed=st.booleans(),
        ),
    ),
    st.binary(max_size=30),
)
@settings(max_examples=50, deadline=None)
def test_a_journal_gives_back_what_it_was_given_whatever_a_kill_left_at_its_end(tmp_path_factory, sent, torn):
    path = tmp_path_factory.mktemp("journal") / "state.jsonl"
    journal = SentLog(path)
    for key, value in sent.items():
        journal.add(key, value)
    journal.close()
    with open(path, "ab") as stream:
        stream.write(b"[" + torn.replace(b"\n", b""))
    again = SentLog(path)
    again.close()
    assert again.sent == sent


TEXT = st.text(max_size=20)
STEP = st.integers(1, 10**6)


@st.composite
def manifests(draw):
    state = st.sampled_from(["ok", "empty", "truncated"])
    paths = draw(st.lists(FILE_NAMES.map(lambda name: f"profiles/{name}"), unique=True, max_size=4))
    reports = tuple(
        Report(
            path, draw(state), draw(SMALL), "nsight", worker=draw(TEXT), rank=draw(SMALL), start=draw(STEP)
        )
        for path in paths
    )
    captures = [
        CaptureResult(
            draw(TEXT),
            "torch",
            draw(TEXT),
            draw(SMALL),
            draw(STEP),
            None,
            draw(st.none() | TEXT),
            "missing",
            "because",
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    captures += [CaptureResult("id", "torch", "w", 0, 1, 2, None, "ok", "", report=path) for path in paths]
    return Manifest(
        draw(TEXT),
        tuple(captures),
        reports,
        {draw(TEXT): draw(SMALL)},
        tuple(draw(st.lists(TEXT, max_size=2))),
    )


@given(manifests())
@settings(max_examples=60, deadline=None)
def test_any_manifest_survives_its_file_and_fits_the_schema(manifest):
    data = json.loads(manifest.to_json().encode("ascii"))
    jsonschema.validate(data, SCHEMA)
    assert Manifest.from_dict(data) == manifest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
KEYS = st.sampled_from(
    [
        "event",
        "steps",
        "backend",
        "worker",
        "rank",
        "pid",
        "t_ns",
        "path",
        "phase",
        "files",
        "failed",
        "recovered",
        "plugin_loaded",
    ]
)
ROW = st.dictionaries(
    KEYS,
    JSON
    | st.sampled_from(["registered", "closed", "opened", "failed", "nsight", "../../x", "policy_worker"]),
    max_size=6,
)


@given(st.lists(ROW, max_size=6), ROW, JSON)
@settings(max_examples=60, deadline=None)
def test_harvest_survives_any_record_and_any_event(tmp_path_factory, rows, record, end):
    job = RunFolder(
        tmp_path_factory.mktemp("job") / "r",
        {"captures": [{"backend": "nsight", "workers": ["policy_worker"], "steps": "3"}]},
    )
    job.worker("policy_worker", 0)
    job.file("nodes/n1/events/x.jsonl", "\n".join(map(json.dumps, rows)).encode())
    job.write()
    job.file("nodes/n2.json", json.dumps(record).encode())
    job.values["end"] = job.values["driver"] = end
    (job.root / "run.json").write_text(json.dumps(job.values))
    manifest = harvest(job.root, content_budget_s=0)
    jsonschema.validate(json.loads((job.root / "manifest.json").read_text()), SCHEMA)
    assert all(capture.reason for capture in manifest.captures if capture.state != "ok")


WORKERS = st.text(string.ascii_lowercase + "_-./: 0123456789", min_size=1, max_size=12).filter(
    lambda name: name.strip() == name
)


@given(
    worker=WORKERS,
    count=st.integers(1, 3),
    start=st.integers(1, 9),
    length=st.integers(1, 4),
    second=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_what_is_planned_and_taken_is_what_harvest_finds(
    tmp_path_factory, worker, count, start, length, second
):
    steps = f"{start}:{start + length}" + (f",{start + length + 2}" if second else "")
    request = {"captures": [{"backend": "nsight", "workers": ["*"], "steps": steps}]}
    job = RunFolder(tmp_path_factory.mktemp("job") / "r", request)
    asked = plan(request_from_dict(request), {worker: count}).captures
    for rank in range(count):
        job.worker(worker, rank, last_step=20)
    for capture in asked:
        job.report(
            "nsight", capture.worker, capture.rank, capture.window.start, capture.window.stop, data=NSYS_FRAME
        )
    manifest = harvest(job.write(), content_budget_s=0)
    assert sorted(capture.id for capture in manifest.captures) == sorted(capture.id for capture in asked)
    assert manifest.complete and not manifest.unplanned
    assert all(
        report_names.parse(report.path.rsplit("/", 1)[-1]).kind == "rlprof" for report in manifest.reports
    )
