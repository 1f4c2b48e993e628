#!/bin/sh
# Python for a node's task whose Ray is a stand-in, and nothing else: see tests/bench/scale/python.sh.
beside="$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")/bench/scale/python.sh"
case "$*" in
  "-m rlprof_ops.supervisor")
    exec "$SCALE_PYTHON" -c 'import sys; sys.executable = sys.argv[1]
from rlprof_ops.supervisor import node_task
sys.exit(node_task.main())' "$beside" "$@" ;;
  *) exec "$SCALE_PYTHON" "$@" ;;
esac
