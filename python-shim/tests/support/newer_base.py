"""Owns tests on the base class of a release that cannot be installed: a pytest plug-in that is given its file."""

import importlib.util
import os
import sys

from vllm.distributed.kv_transfer.kv_connector import v1

#: Where the wheel's `base.py` was unpacked to.
VARIABLE = "TIERKV_TEST_BASE"
_NAME = f"{v1.__name__}.base"

_spec = importlib.util.spec_from_file_location(_NAME, os.environ[VARIABLE])
assert _spec is not None
assert _spec.loader is not None
_base = importlib.util.module_from_spec(_spec)
sys.modules[_NAME] = _base
_spec.loader.exec_module(_base)
vars(v1)["base"] = _base
