"""Waits, in every Python of EXO's environment, for the import of EXO's prefix cache; `tierkv install` sets it up.

Run by path from a `.pth` file, so it imports nothing of tierKV before that, and leaves `sys.path` alone.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

TARGET = "exo.worker.engines.mlx.cache"


class _Waiting(MetaPathFinder):
    """Finds the one module as Python would, and wraps its loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != TARGET:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Continued(spec.loader)
        return spec


class _Continued(Loader):
    """Loads a module by its own loader, then installs tierKV into it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            _own_package()
            from tierkv.mlx.exo import install  # noqa: PLC0415 - not before EXO itself

            install(module)
        except Exception as error:  # noqa: BLE001 - EXO starts without us
            sys.stderr.write(f"tierKV: off: it cannot be loaded into EXO: {error!r}\n")


def _own_package() -> None:
    """Make tierKV importable from this file's folder."""
    if "tierkv" in sys.modules:
        return
    folder = Path(__file__).resolve().parents[1]
    spec = spec_from_file_location(
        "tierkv", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is no package")
    package = module_from_spec(spec)
    sys.modules["tierkv"] = package
    spec.loader.exec_module(package)


sys.meta_path.insert(0, _Waiting())
