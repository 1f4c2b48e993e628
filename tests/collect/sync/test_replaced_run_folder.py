"""Another folder under the run folder's name, where others may rename in the folder above, gets nothing; what
was for it stays on the node, and goes on to the right one once that is back.
"""

import json
import os
import pwd

import pytest

from rlprof_ops.collect.drain.drain_steps import write_node_record
from rlprof_ops.collect.sync.live_logs import LiveLogs
from rlprof_ops.collect.sync.sync_pass import Syncer
from rlprof_ops.host.background import BackgroundWriter
from rlprof_ops.host.contained_dir import ReplacedFolder
from rlprof_ops.job.folders import pinned_run

STRANGER = pwd.getpwnam("nobody").pw_uid


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/logs").mkdir()
    (tmp_path / "node/logs").mkdir(parents=True)
    (tmp_path / "node/live").mkdir()
    return tmp_path / "run"


@pytest.fixture
def node(run):
    return run.parent / "node"


@pytest.fixture(params=["a stranger's", "of this user's own, an earlier job's"])
def replace(request, run):
    """Put another folder under the run folder's name; gives what puts the right one back."""
    if os.geteuid() and request.param == "a stranger's":
        pytest.skip("only root can give a folder to another user")

    def swap():
        aside = run.with_name("aside")
        run.rename(aside)
        run.mkdir()
        (run / "logs").mkdir()
        if request.param == "a stranger's":
            for path in (run, run / "logs"):
                os.chown(path, STRANGER, STRANGER)
                path.chmod(0o777)

        def back():
            run.rename(run.with_name("trap"))
            aside.rename(run)

        return back

    return swap


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_sync_writes_nothing_there_and_goes_on_when_the_right_one_is_back(node, run, replace):
    (node / "logs/raylet.log").write_text("one\n")
    syncer = Syncer(node, run, "n1")
    assert syncer.pass_().complete
    back = replace()
    with open(node / "logs/raylet.log", "a") as log:
        log.write("two\n")
    (node / "logs/gcs.log").write_text("new\n")
    for last in (False, True):
        report = syncer.pass_(last=last)
        assert not report.complete
        assert f"{run} has been replaced" in report.target_error
    assert files(run) == []
    back()
    assert syncer.pass_(last=True).complete
    assert (run / "logs/n1/raylet.log").read_text() == "one\ntwo\n"
    assert (run / "logs/n1/gcs.log").read_text() == "new\n"
    assert files(run.with_name("trap")) == []


def test_a_sync_that_is_started_again_knows_the_folder_by_what_the_node_recorded(node, run, replace):
    assert Syncer(node, run, "n1").pass_().complete
    replace()
    (node / "logs/raylet.log").write_text("one\n")
    assert f"{run} has been replaced" in Syncer(node, run, "n1").pass_(last=True).target_error
    assert files(run) == []


def test_a_live_log_is_not_begun_in_another_folder(node, run, replace):
    pinned_run(run, node).open().close()
    back, said = replace(), []
    (node / "live/driver.log").write_text("step 1\n")
    live = LiveLogs(node, run, said.append)
    assert live.look() == 0
    assert f"{run} has been replaced" in said[0]
    assert files(run) == []
    back()
    live._not_before = 0.0
    live.look()
    live.close()
    assert (run / "logs/driver.log").read_text() == "step 1\n"


def test_a_nodes_record_stays_on_the_node(node, run, replace):
    pinned_run(run, node).open().close()
    replace()
    with pytest.raises(ReplacedFolder, match="has been replaced"):
        write_node_record(node, run, "n1", {"clean": True})
    assert files(run) == []
    assert json.loads((node / "keep/n1.json").read_text())["node"] == "n1"


def test_a_supervisors_records_go_to_the_right_folder_alone_and_it_says_so_once(
    node, run, replace, monkeypatch
):
    monkeypatch.setattr("rlprof_ops.host.background._LOOK_SECONDS", 0.0)
    pinned, said, errors = pinned_run(run, node), [], []
    pinned.say = said.append
    writer = BackgroundWriter(pinned)

    def write(text):
        writer.put(run / "run.json", text.encode(), errors.append)
        writer.append(run / "logs/head.log", text.encode())
        assert writer.flush(10)

    write("1")
    back = replace()
    write("2")
    write("3")
    assert files(run) == []
    assert len(said) == 1 and str(run) in said[0] and "has been replaced" in said[0], said
    back()
    write("4")
    assert (run / "run.json").read_text() == "4"
    assert (run / "logs/head.log").read_text() == "14"
    assert [error is None for error in errors] == [True, False, False, True]
    assert len(said) == 2 and "again" in said[1]


def test_between_two_looks_at_the_name_a_supervisor_writes_into_the_folder_that_it_holds(node, run, replace):
    writer = BackgroundWriter(pinned_run(run, node))
    writer.append(run / "logs/head.log", b"1")
    assert writer.flush(10)
    replace()
    writer.append(run / "logs/head.log", b"2")
    assert writer.flush(10)
    assert files(run) == []
    assert (run.with_name("aside") / "logs/head.log").read_text() == "12"
