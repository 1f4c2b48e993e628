"""On PYTHONPATH as `sitecustomize`: rank 0 of a trainer writes other data for SLOW_SAVE_S seconds when it has
saved a file whose name has SLOW_SAVE_NAME in it by torch.save.
"""

from __future__ import annotations

import os
import sys
import time


class SlowSave:
    """Finds torch.serialization, and wraps its `save`."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch.serialization":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(found for found in others if found)
        run = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            run(module)
            save = module.save

            def slow(what, file, *more, **named):  # type: ignore[no-untyped-def]
                save(what, file, *more, **named)
                if os.environ.get("RANK") == "0" and os.environ["SLOW_SAVE_NAME"] in str(file):
                    write(f"{file}.more")

            module.save = slow

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
