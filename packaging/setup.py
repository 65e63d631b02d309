"""Owns the tag of the wheel: any Python 3, but one platform, because of the native core."""

import os
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Platform(Distribution):
    """A distribution with compiled files, so that it installs where they belong."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 on the platform that TIERKV_WHEEL_PLATFORM names."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", os.environ["TIERKV_WHEEL_PLATFORM"]


FOLDERS = [path for path in Path("share").rglob("*") if path.is_dir()]

setup(
    distclass=Platform,
    cmdclass={"bdist_wheel": PlatformWheel},
    # Manual pages and completion, below the environment's prefix.
    data_files=[
        (str(folder), sorted(str(path) for path in folder.iterdir() if path.is_file()))
        for folder in sorted(FOLDERS)
    ],
)
