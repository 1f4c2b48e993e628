"""A process in which something was asked: the recorders of backends are tested through its profiler."""

from tests.runtime.conftest import asked as asked
from tests.runtime.conftest import events as events
