"""Owns the tag of the wheel: nothing in it is of one Python, but its native core is of one platform."""

import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Platform(Distribution):
    """What is installed where compiled files belong."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 on the platform that TIERKV_WHEEL_PLATFORM names."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", os.environ["TIERKV_WHEEL_PLATFORM"]


setup(distclass=Platform, cmdclass={"bdist_wheel": PlatformWheel})
