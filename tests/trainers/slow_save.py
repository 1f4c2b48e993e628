"""On PYTHONPATH as `sitecustomize`: rank 0 of a trainer writes other data to SLOW_SAVE_PATH for SLOW_SAVE_S
seconds when it has called SLOW_SAVE_FUNCTION, `torch.serialization:save`, with SLOW_SAVE_NAME among its
arguments.
"""

from __future__ import annotations

import os
import sys
import time

MODULE, _, FUNCTION = os.environ["SLOW_SAVE_FUNCTION"].partition(":")


class SlowSave:
    """Finds the module, and wraps the function."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != MODULE:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(found for found in others if found)
        run = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            run(module)
            *owners, last = FUNCTION.split(".")
            for owner in owners:
                module = getattr(module, owner)
            save = getattr(module, last)

            def slow(*given, **named):  # type: ignore[no-untyped-def]
                done = save(*given, **named)
                if os.environ.get("RANK") == "0" and os.environ["SLOW_SAVE_NAME"] in str(given):
                    write(os.environ["SLOW_SAVE_PATH"])
                return done

            setattr(module, last, slow)

        spec.loader.exec_module = exec_module
        return spec


def write(path: str) -> None:
    until = time.monotonic() + float(os.environ["SLOW_SAVE_S"])
    while time.monotonic() < until:
        with open(path, "wb") as file:
            file.write(bytes(8 << 20))
            file.flush()
            os.fsync(file.fileno())
        time.sleep(0.2)
    print(f"saved slowly: {path}", flush=True)


sys.meta_path.insert(0, SlowSave())  # type: ignore[arg-type]
