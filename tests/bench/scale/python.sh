#!/bin/sh
# Python for the supervisors of a simulated job: Ray's processes are stand-ins, everything else is Python's own.
case "$*" in
  *ray.scripts.scripts*)
    : > "$RLPROF_NODE_DIR/plugin_loaded"
    echo "Ray runtime started"
    case "$*" in
      *--head*) exec "$SCALE_PYTHON" "${0%/*}/ray_stand_in.py" "$RAY_ADDRESS" ;;
      *) exec sleep 1000000 ;;
    esac
    ;;
  *RuntimeEnvPluginManager*) echo "rlprof plugin ok" ;;
  *node.resource_probe*) exec sleep 1000000 ;;
  *) exec "$SCALE_PYTHON" "$@" ;;
esac
