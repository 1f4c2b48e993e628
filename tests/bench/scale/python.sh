#!/bin/sh
# Python for the supervisors of a simulated job: Ray's processes are stand-ins, everything else is Python's own.
case "$*" in
  *ray.scripts.scripts*)
    : > "$SCALE_ALIVE/$RLPROF_NODE"
    : > "$RLPROF_NODE_DIR/plugin_loaded"
    echo "Ray runtime started"
    case "$*" in
      *--head*) exec "$SCALE_PYTHON" "${0%/*}/ray_stand_in.py" listen "$RAY_ADDRESS" ;;
      *) exec sleep 1000000 ;;
    esac
    ;;
  *gcs.gcs_probe*) exec "$SCALE_PYTHON" "${0%/*}/ray_stand_in.py" alive "$SCALE_ALIVE" ;;
  *gcs.resource_probe*) exec sleep 1000000 ;;
  *) exec "$SCALE_PYTHON" "$@" ;;
esac
