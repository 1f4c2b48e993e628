"""The commands of `rlprof`, one thin file each: options, then one call into the room that does the work.

A module `patch_ray.py` holds the command `patch-ray` under the name `command`.
"""
