"""Builds run folders for tests: a job with nodes, workers, events and reports, as the supervisor would
leave it.
"""

import gzip
import json
import os

from rlprof_ops.backends import report_names
from rlprof_ops.request import Window, request_from_dict

NSYS_FRAME = b"NVIDIA Tegra Profiler Report" + bytes(64) + b"[END]"
TRACE = gzip.compress(
    b'{"traceEvents": [{"ph": "X", "name": "train", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
)


class RunFolder:
    """`write()` puts run.json; `worker()` an event log; `report()` a file under its own name."""

    def __init__(self, root, request, nodes=("n1", "n2"), job="4711"):
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.nodes = list(nodes)
        self.values = {
            "schema": 1,
            "job": job,
            "job_name": "grpo",
            "user": "me",
            "nodes": self.nodes,
            "head": self.nodes[0],
            "framework": None,
            "command": "python train.py",
            "request": request_from_dict(request).to_dict(),
            "world": {},
            "versions": {},
            "started_ns": 1,
            "driver": {"started_ns": 2, "ended_ns": 3, "exit_code": 0, "signal": None},
            "end": {"cause": "driver_exit", "detail": "", "phases_s": {}},
        }
        self.records = {
            node: {
                "schema": 1,
                "node": node,
                "plugin_loaded": True,
                "clean": True,
                "files": [],
                "recovered": [],
                "failed": [],
            }
            for node in nodes
        }

    def write(self, **changes):
        self.values.update(changes)
        (self.root / "run.json").write_text(json.dumps(self.values))
        (self.root / "nodes").mkdir(exist_ok=True)
        for node, record in self.records.items():
            if record is not None:
                (self.root / "nodes" / f"{node}.json").write_text(json.dumps(record))
        return self.root

    def worker(
        self,
        worker,
        rank,
        node="n1",
        pid=100,
        windows=(),
        last_step=8,
        world_size=None,
        ended=True,
        extra=(),
        **registered,
    ):
        """`windows`: (event, backend, start, stop, phase) tuples; a closed one also gets its path.
        `registered`: more of the line by which it registers.
        """
        folder = self.root / "nodes" / node / "events"
        folder.mkdir(parents=True, exist_ok=True)
        stem = report_names.process_name(worker, rank, node, pid)
        rows = [
            {
                "event": "registered",
                "t_ns": 10,
                "worker": worker,
                "rank": rank,
                "world_size": world_size,
                "pid": pid,
                "host": node,
                "backends": ["nsight"],
                **registered,
            }
        ]
        for event, backend, start, stop, phase, *more in windows:
            row = {
                "event": event,
                "t_ns": 20,
                "backend": backend,
                "steps": [start, stop],
                "phase": phase,
                "report": "r",
            }
            if event == "closed":
                row["path"] = str(self.place(backend, worker, rank, start, stop, phase, node, pid))
            rows.append({**row, **(more[0] if more else {})})
        rows += extra
        if ended:
            rows.append({"event": "ended", "t_ns": 30, "last_step": last_step, "step_times_ns": {}})
        (folder / f"{stem}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{stem}.step").write_bytes((last_step or 0).to_bytes(8, "little"))

    def place(self, backend, worker, rank, start, stop, phase, node, pid):
        suffix = {"nsight": ".nsys-rep", "torch": ".pt.trace.json.gz"}[backend]
        return report_names.report_folder(backend, worker, rank) / report_names.report_name(
            worker, rank, Window(start, stop), phase, node, pid, suffix
        )

    def report(self, backend, worker, rank, start, stop, phase=None, node="n1", pid=100, data=None):
        path = self.place(backend, worker, rank, start, stop, phase, node, pid)
        return self.file(str(path), {"nsight": NSYS_FRAME, "torch": TRACE}[backend] if data is None else data)

    def file(self, relative, data):
        path = self.root / relative
        os.makedirs(path.parent, exist_ok=True)
        path.write_bytes(data)
        return path

    def sent(self, node, relative, size, sha256=None, state="copied"):
        self.records[node]["files"].append(
            {"path": relative, "size_bytes": size, "sha256": sha256, "mtime_ns": 0, "state": state}
        )
