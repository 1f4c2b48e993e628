"""OmegaConf reads the trainers' own configurations with libyaml: verl's compose in two thirds of the time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import yaml


@pytest.fixture(autouse=True)
def omegaconf_parses_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes its loader of `yaml.SafeLoader` each time; ours stays as it is."""
    try:
        from omegaconf import _utils
    except ImportError:
        return
    in_c = {"SafeLoader": getattr(yaml, "CSafeLoader", yaml.SafeLoader)}
    monkeypatch.setattr(_utils, "yaml", SimpleNamespace(**(vars(yaml) | in_c)))
