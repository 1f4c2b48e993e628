"""Ranks for an engine's inner workers, which share one runtime env: each takes the first free number when it
starts.

vLLM and TensorRT-LLM create their tensor-parallel workers as Ray actors of one runtime env, and tell each its
rank as an argument, which no command line shows. So bash, which Ray starts every worker with, claims a number
for it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.backends import report_names

# Stands for the number in the words that are wrapped around the worker, and in the settings before them.
RANK = "@RLPROF_RANK@"

# A file a number, with the pid of who has it: bash's own, which stays that of nsys after `exec`. `set -C`
# creates a file once; a number whose owner is gone is taken over by whoever makes the folder named after that
# owner.
_SCRIPT = r"""
slots=$1 number=$2 ranks=$3 count=$4; shift 4; mkdir -p "$slots"
until (set -C; echo $$ > "$slots/$number") 2> /dev/null; do
  owner=$(cat "$slots/$number" 2> /dev/null)
  if [ -n "$owner" ] && ! kill -0 "$owner" 2> /dev/null && mkdir "$slots/$number.$owner" 2> /dev/null; then
    echo $$ > "$slots/$number"; break
  fi
  [ -d "$slots" ] || break
  number=$((number + 1))
done
export RLPROF_RANK=$number
case $ranks in all|*,$number,*) ;; *) shift "$count"; exec "$@";; esac
for word in "${@:1:count}"; do
  own=${word//@RLPROF_RANK@/$number}
  case $word in /*@RLPROF_RANK@*) mkdir -p "${own%/*}";; esac
  words+=("$own")
done
exec "${words[@]}" "${@:count+1}"
"""


def numbered(
    words: Sequence[str],
    py_executable: str,
    worker: str,
    base: int,
    ranks: Sequence[int] | None,
    env: Mapping[str, str],
) -> str:
    """Text for `bash -c "exec …"`: take a number, then `words` with it in place of `RANK`, then the
    interpreter.

    Args:
        words: what is wrapped around the interpreter; left out for a worker whose number is not selected.
        py_executable: shell text already, as Ray has it.
        base: the first number to try.
        ranks: the selected ones; None for all.
    """
    slots = Path(
        env.get(env_names.NODE_DIR) or "/tmp/rlprof-" + str(os.getuid()),
        "ranks",
        report_names.safe_worker(worker),
    )
    chosen = "all" if ranks is None else "," + ",".join(map(str, ranks)) + ","
    before = ["bash", "-c", _SCRIPT, "rlprof-rank", str(slots), str(base), chosen, str(len(words))]
    return " ".join([*map(shlex.quote, [*before, *words]), py_executable])
