#!/usr/bin/env bash
# Repairs one line of an installed Ray: its nsight plugin starts profiled workers with a bare "python" instead of the
# interpreter that was chosen for them. For clusters where rlprof's runtime-env plugin cannot be registered.
#
# usage: scripts/patch_ray_nsight.sh [--python PY | --file F] [--check]
#
#   --python PY   the interpreter whose Ray is meant (default python3)
#   --file F      the nsight.py itself, wherever it is
#   --check       change nothing
#
# Exit: 0 repaired now, before, or by Ray itself; 1 with --check when it needs the patch; 2 when it could not be done.
# Several at once do no harm, on one node or on many with a shared installation. Ray processes that already run keep
# the old code: patch before `ray start`.
set -euo pipefail

readonly PATCH_OK=0 PATCH_NEEDED=1 PATCH_FAILED=2
readonly PATCH_LOCK_TIMEOUT_S=60
readonly PATCH_BROKEN_LINE='^[[:space:]]*context\.py_executable = " "\.join\(self\.nsight_cmd\) \+ " python"[[:space:]]*$'
readonly PATCH_EDIT='s/^([[:space:]]*context\.py_executable = " "\.join\(self\.nsight_cmd\) \+ )" python"([[:space:]]*)$/\1f" {context.py_executable}"\2/'
readonly PATCH_ISSUE="https://github.com/ray-project/ray/issues/66093"
patch_temporary=""

patch::log() {
    printf 'patch_ray_nsight: %s\n' "$*"
}

patch::err() {
    printf 'patch_ray_nsight: error: %s\n' "$*" >&2
    exit "${PATCH_FAILED}"
}

patch::_usage() {
    sed -n '2,/^set -euo/ { /^set -euo/d; s/^# \{0,1\}//; p; }' "${BASH_SOURCE[0]}"
}

# Prints the path of nsight.py of the Ray that the interpreter would import. Ray itself is not imported.
patch::_find() {
    local -r python="$1"
    local file

    command -v -- "${python}" > /dev/null || patch::err "no interpreter ${python@Q}: give --python or --file"

    # The current folder must not count: a checkout of Ray there is not the installed one.
    file=$("${python}" - << 'EOF'
import importlib.util, os, sys
sys.path[:] = [entry for entry in sys.path if entry]
spec = importlib.util.find_spec("ray")
if spec and spec.submodule_search_locations:
    print(os.path.join(list(spec.submodule_search_locations)[0], "_private", "runtime_env", "nsight.py"))
EOF
    ) || patch::err "${python@Q} does not run"

    [[ -n "${file}" ]] || patch::err "${python@Q} has no Ray: install it, or name another interpreter with --python"
    [[ -f "${file}" ]] || patch::err "the Ray of ${python@Q} has no nsight plugin: ${file@Q} is missing (Ray before 2.8?)"
    printf '%s\n' "${file}"
}

# Prints what a file is: broken, patched, upstream (Ray's own repair), or unknown.
patch::_state() {
    local -r python="$1" file="$2"
    local lines

    lines=$(grep -cE -- "${PATCH_BROKEN_LINE}" "${file}" || true)
    "${python}" - "${file}" "${lines}" << 'EOF'
import ast, sys

path, broken_lines = sys.argv[1], int(sys.argv[2])
PATCHED = "context.py_executable = ' '.join(self.nsight_cmd) + f' {context.py_executable}'"
BROKEN = "context.py_executable = ' '.join(self.nsight_cmd) + ' python'"


def state():
    try:
        with open(path, "rb") as source:
            tree = ast.parse(source.read())
    except (SyntaxError, ValueError):
        return "unknown"
    functions = [node for node in ast.walk(tree) if getattr(node, "name", "") == "modify_context"]
    if len(functions) != 1:
        return "unknown"
    nodes = list(ast.walk(functions[0]))
    assigned = [n for n in nodes if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "context.py_executable"]
    if len(assigned) != 1:
        return "unknown"
    line = ast.unparse(assigned[0])
    if line == BROKEN:
        return "broken" if broken_lines == 1 else "unknown"
    if line == PATCHED:
        return "patched"
    # Repaired by Ray: the chosen interpreter is read, and no bare "python" is written.
    reads = any(
        isinstance(n, ast.Attribute) and n.attr == "py_executable" and isinstance(n.ctx, ast.Load) for n in nodes
    )
    bare = any(isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.endswith("python") for n in nodes)
    return "upstream" if reads and not bare else "unknown"


print(state())
EOF
}

# Fails unless the file may be replaced. Root passes every mode bit, so a file without any write bit is refused here.
patch::_require_writable() {
    local -r file="$1"
    local mode

    mode=$(stat -L -c %a -- "${file}")
    (( 8#${mode} & 8#222 )) || patch::err "${file@Q} is read-only (mode ${mode}), left as it is: chmod u+w it, or use the runtime-env plugin"
    [[ -w "${file}" ]] || patch::err "${file@Q} cannot be written by $(id -un) (owner, immutable flag or read-only mount), left as it is"
    [[ -w "${file%/*}" ]] || patch::err "the folder ${file%/*} cannot be written by $(id -un), left as it is"
}

# Writes the repaired copy beside the file, checks it, and renames it over the file.
patch::_apply() {
    local -r python="$1" file="$2"
    local state

    patch::_require_writable "${file}"
    patch_temporary=$(mktemp -- "${file%/*}/.nsight.py.XXXXXXXX") || patch::err "cannot write in ${file%/*}"
    trap 'rm -f -- "${patch_temporary}"' EXIT

    sed -E -- "${PATCH_EDIT}" "${file}" > "${patch_temporary}" || patch::err "cannot write ${patch_temporary@Q}, ${file@Q} left as it is"
    state=$(patch::_state "${python}" "${patch_temporary}")
    [[ "${state}" == patched ]] || patch::err "the patched copy of ${file@Q} came out ${state}, left as it is"

    chmod --reference="${file}" -- "${patch_temporary}"
    (( EUID )) || chown --reference="${file}" -- "${patch_temporary}"
    sync -- "${patch_temporary}"
    mv -f -- "${patch_temporary}" "${file}" || patch::err "cannot replace ${file@Q}, left as it is"
    trap - EXIT
}

# Fails when Python would still run the old code, from a compiled copy that is never compared with its source.
patch::_verify() {
    local -r python="$1" file="$2"

    PYTHONDONTWRITEBYTECODE=1 "${python}" - "${file}" << 'EOF' || patch::err "${file@Q} is patched, but Python does not load it: see above"
import importlib.machinery, sys, types

path = sys.argv[1]


def functions(code):
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield const
            yield from functions(const)


code = importlib.machinery.SourceFileLoader("nsight", path).get_code("nsight")
loaded = [f for f in functions(code) if f.co_name == "modify_context"]
if not loaded or any(" python" in f.co_consts for f in loaded):
    sys.exit(f"a stale compiled copy is in {path.rpartition('/')[0]}/__pycache__: remove nsight.*.pyc there")
EOF
}

# Holds the folder's lock while patching, so that the second of two says "already patched". The rename alone keeps
# the file whole where locks do not work (some network file systems), so a lock that fails is no error.
patch::_lock() {
    local -r folder="$1"
    local fd

    [[ -r "${folder}" ]] || return 0
    exec {fd}< "${folder}"
    flock --exclusive --wait "${PATCH_LOCK_TIMEOUT_S}" "${fd}" 2> /dev/null || true
}

patch::main() {
    local python="python3" file="" check=""
    local state

    while (( $# )); do
        case "$1" in
            --python | --file)
                [[ -n "${2-}" ]] || patch::err "$1 needs a value"
                if [[ "$1" == --file ]]; then file="$2"; else python="$2"; fi
                shift 2
                ;;
            --check) check=yes && shift ;;
            -h | --help) patch::_usage && return "${PATCH_OK}" ;;
            *) patch::err "unknown argument ${1@Q}: allowed are --python, --file and --check" ;;
        esac
    done

    if [[ -z "${file}" ]]; then
        file=$(patch::_find "${python}")
    fi
    [[ -f "${file}" ]] || patch::err "no file ${file@Q}"
    [[ -r "${file}" ]] || patch::err "${file@Q} cannot be read by $(id -un)"
    [[ "${file}" == */* ]] || file="./${file}"

    [[ -n "${check}" ]] || patch::_lock "${file%/*}"
    state=$(patch::_state "${python}" "${file}") || patch::err "${python@Q} could not judge ${file@Q}: Python 3.9 or newer is needed"
    case "${state}" in
        patched)
            patch::_verify "${python}" "${file}"
            patch::log "already patched: ${file}"
            ;;
        upstream) patch::log "already fixed upstream, nothing to do: ${file}" ;;
        broken)
            if [[ -n "${check}" ]]; then
                patch::log "needs the patch (${PATCH_ISSUE}): ${file}"
                return "${PATCH_NEEDED}"
            fi
            patch::_apply "${python}" "${file}"
            patch::_verify "${python}" "${file}"
            patch::log "patched: ${file}"
            ;;
        *)
            patch::err "${file@Q} has a shape this script does not know, left as it is: look for the assignment to" \
                "context.py_executable in modify_context and compare with ${PATCH_ISSUE}"
            ;;
    esac
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    patch::main "$@"
fi
