"""The patch of Ray's nsight plugin, on copies of the real file of the installed Ray."""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "patch_ray_nsight.sh"
BROKEN = 'context.py_executable = " ".join(self.nsight_cmd) + " python"'
PATCHED = 'context.py_executable = " ".join(self.nsight_cmd) + f" {context.py_executable}"'
UPSTREAM = (  # the repair proposed in Ray's pull request 66094
    "py_executable = context.py_executable or sys.executable\n"
    '        context.py_executable = " ".join(self.nsight_cmd) + f" {py_executable}"'
)
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user or to mount")


def original() -> Path:
    ray = pytest.importorskip("ray")
    return Path(ray.__file__).parent / "_private" / "runtime_env" / "nsight.py"


@pytest.fixture
def plugin(tmp_path):
    """A copy of Ray's own nsight.py, in a folder with a space and a quote in its name."""
    path = tmp_path / "site 'packages" / "nsight.py"
    path.parent.mkdir()
    source = original().read_text()
    assert source.count(BROKEN) == 1, (
        "the installed Ray is repaired already: this test needs its original file"
    )
    path.write_text(source)
    path.chmod(0o664)
    return path


def patch(*args, cwd=None, **more) -> subprocess.CompletedProcess:
    command = ["bash", str(SCRIPT), "--python", sys.executable, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=cwd, **more)


def assert_untouched(plugin, before, result):
    assert result.returncode == 2, result.stdout + result.stderr
    assert plugin.read_text() == before
    assert [p.name for p in plugin.parent.iterdir()] == ["nsight.py"]


def test_first_run_patches_one_line_and_keeps_the_mode(plugin):
    before = plugin.read_text()

    result = patch("--file", plugin)

    assert (result.returncode, result.stdout) == (0, f"patch_ray_nsight: patched: {plugin}\n")
    assert plugin.read_text() == before.replace(BROKEN, PATCHED)
    assert plugin.stat().st_mode & 0o777 == 0o664
    assert [p.name for p in plugin.parent.iterdir()] == ["nsight.py"]


def test_second_run_says_so_and_changes_nothing(plugin):
    patch("--file", plugin)
    before = plugin.stat()

    result = patch("--file", plugin)

    assert (result.returncode, result.stdout) == (0, f"patch_ray_nsight: already patched: {plugin}\n")
    assert (plugin.stat().st_ino, plugin.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_patched_plugin_keeps_the_workers_interpreter(plugin):
    patch("--file", plugin)
    program = """
import importlib.util, sys, types
spec = importlib.util.spec_from_file_location("patched", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
plugin = module.NsightPlugin.__new__(module.NsightPlugin)
plugin.nsight_cmd = ["nsys", "profile"]
context = types.SimpleNamespace(py_executable="uv run --isolated python3")
plugin.modify_context([], None, context)
print(context.py_executable)
"""

    result = subprocess.run(
        [sys.executable, "-c", program, plugin], capture_output=True, text=True, timeout=180
    )

    assert result.stdout == "nsys profile uv run --isolated python3\n", result.stderr


def test_check_changes_nothing_and_tells_by_its_exit_code(plugin):
    before = plugin.read_text()

    needed = patch("--file", plugin, "--check")
    unchanged = plugin.read_text() == before
    patch("--file", plugin)
    done = patch("--file", plugin, "--check")

    assert (needed.returncode, unchanged, done.returncode) == (1, True, 0)
    assert needed.stdout.startswith(
        "patch_ray_nsight: needs the patch (https://github.com/ray-project/ray/issues/66093)"
    )


def test_a_repair_by_ray_itself_is_recognised(plugin):
    plugin.write_text(plugin.read_text().replace(BROKEN, UPSTREAM))

    for args in ([], ["--check"]):
        result = patch("--file", plugin, *args)
        assert (result.returncode, result.stdout) == (
            0, f"patch_ray_nsight: already fixed upstream, nothing to do: {plugin}\n",
        )  # fmt: skip


@pytest.mark.parametrize(
    "edit",
    [
        lambda source: source.replace(
            BROKEN, 'context.py_executable = f"{shlex.join(self.nsight_cmd)} python"'
        ),
        lambda source: source.replace(BROKEN, "context.py_executable = wrap(self.nsight_cmd)"),
        lambda source: source.replace(BROKEN, "pass"),
        lambda source: source.replace(BROKEN, f"{BROKEN}\n        {BROKEN}"),
        lambda source: source.replace(
            BROKEN, f"if x:\n            {BROKEN}\n        else:\n            {PATCHED}"
        ),
        lambda source: source + "\n    syntax error",
        lambda source: "",
    ],
    ids=["f-string", "function", "gone", "twice", "mixed", "no-python", "empty"],
)
def test_an_unknown_shape_is_refused(plugin, edit):
    plugin.write_text(edit(plugin.read_text()))
    before = plugin.read_text()

    for args in ([], ["--check"]):
        result = patch("--file", plugin, *args)
        assert_untouched(plugin, before, result)
        assert "has a shape this script does not know, left as it is" in result.stderr


def test_a_read_only_file_is_refused_also_for_root(plugin):
    before = plugin.read_text()
    plugin.chmod(0o444)

    result = patch("--file", plugin)

    assert_untouched(plugin, before, result)
    assert (
        "is read-only (mode 444), left as it is: chmod u+w it, or use the runtime-env plugin" in result.stderr
    )


@root_only
@pytest.mark.parametrize("open_folder", [True, False])
def test_another_users_file_is_refused(plugin, open_folder):
    before = plugin.read_text()
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        copy, script = folder / "site" / "nsight.py", folder / SCRIPT.name
        copy.parent.mkdir()
        shutil.copy(plugin, copy)
        shutil.copy(SCRIPT, script)
        copy.chmod(0o644 if open_folder else 0o666)
        copy.parent.chmod(0o777 if open_folder else 0o755)
        folder.chmod(0o755)

        result = subprocess.run(
            ["bash", script, "--python", "/usr/bin/python3", "--file", copy],
            capture_output=True, text=True, timeout=180, user="nobody", cwd="/",
        )  # fmt: skip

        assert_untouched(copy, before, result)
    assert "cannot be written by nobody" in result.stderr


@root_only
def test_a_read_only_mount_is_refused(plugin):
    before = plugin.read_text()
    inside = (
        'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec bash "$2" --python "$3" --file'
        ' "$1/nsight.py"'
    )

    result = subprocess.run(
        ["unshare", "-m", "bash", "-c", inside, "-", plugin.parent, SCRIPT, sys.executable],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip

    if "unshare" in result.stderr or "permission denied" in result.stderr.lower():
        pytest.skip(f"no mount namespaces here: {result.stderr}")
    assert_untouched(plugin, before, result)
    assert "cannot be written by root" in result.stderr


def test_many_at_once_do_no_harm(plugin):
    before = plugin.read_text()

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: patch("--file", plugin), range(6)))

    assert [r.returncode for r in results] == [0] * 6, [r.stderr for r in results]
    assert sum(": patched: " in r.stdout for r in results) == 1
    assert sum(": already patched: " in r.stdout for r in results) == 5
    assert plugin.read_text() == before.replace(BROKEN, PATCHED)
    assert [p.name for p in plugin.parent.iterdir()] == ["nsight.py"]


def test_a_hard_link_elsewhere_keeps_its_content(plugin, tmp_path):
    """uv links the files of a venv to its cache: only this installation may change."""
    cached = tmp_path / "cache.py"
    os.link(plugin, cached)

    patch("--file", plugin)

    assert BROKEN in cached.read_text() and PATCHED in plugin.read_text()


def test_a_compiled_copy_that_would_still_be_run_is_reported(plugin):
    import py_compile

    py_compile.compile(
        str(plugin), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )

    result = patch("--file", plugin)

    assert result.returncode == 2
    assert (
        "stale compiled copy" in result.stderr and "is patched, but Python does not load it" in result.stderr
    )


def test_finds_the_ray_of_an_interpreter_and_not_of_the_current_folder(tmp_path):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").touch()

    result = patch("--check", cwd=tmp_path)

    assert result.returncode in (0, 1), result.stderr
    assert str(original()) in result.stdout


def test_without_ray_or_interpreter_it_says_what_is_missing(tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True, timeout=180)
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    no_ray = patch("--python", bare / "bin" / "python", env=clean)
    no_python = patch("--python", tmp_path / "none")
    no_file = patch("--file", tmp_path / "none.py")

    assert [r.returncode for r in (no_ray, no_python, no_file)] == [2, 2, 2]
    assert "has no Ray: install it, or name another interpreter with --python" in no_ray.stderr
    assert "no interpreter" in no_python.stderr
    assert "no file" in no_file.stderr


def test_a_wrong_argument_is_named():
    result = patch("--chekc")

    assert (result.returncode, result.stderr) == (
        2, "patch_ray_nsight: error: unknown argument '--chekc': allowed are --python, --file and --check\n",
    )  # fmt: skip


def test_the_command_runs_the_same_script(plugin):
    pytest.importorskip("click")
    command = [sys.executable, "-m", "rlprof_ops", "patch-ray", "--file", plugin]
    env = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1] / "python")}

    codes = [
        subprocess.run([*command, *args], env=env, capture_output=True, timeout=180).returncode
        for args in (["--check"], [], ["--check"])
    ]

    assert codes == [1, 0, 0]
    assert PATCHED in plugin.read_text()


def test_the_script_is_clean():
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")

    assert subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True).stdout == ""
