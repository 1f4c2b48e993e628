"""The tables of `report.json` below the level of a step: rows over all ranks of a worker."""
