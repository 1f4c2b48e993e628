"""Ray's session folders: reports are taken from each of them, wherever `session_latest` points."""

from rlprof_ops.collect.sync.sync_pass import Syncer


def test_a_stale_session_latest_loses_no_report(tmp_path):
    node, run = tmp_path / "node", tmp_path / "run"
    run.mkdir()
    for session, pid in (("session_2026-11-21_05-00-00_1_1", 7), ("session_2026-11-21_06-00-00_2_2", 8)):
        folder = node / "ray" / session / "logs" / "nsight"
        folder.mkdir(parents=True)
        (folder / f"worker_process_{pid}.nsys-rep").write_bytes(b"report")
    (node / "ray" / "session_latest").symlink_to(node / "ray" / "session_2026-11-21_05-00-00_1_1")

    report = Syncer(node, run, "n1").pass_(last=True)

    assert report.complete, report
    assert sorted(path.relative_to(run).as_posix() for path in run.rglob("*.nsys-rep")) == [
        "ray/n1/session_2026-11-21_05-00-00_1_1/logs/nsight/worker_process_7.nsys-rep",
        "ray/n1/session_2026-11-21_06-00-00_2_2/logs/nsight/worker_process_8.nsys-rep",
    ]
