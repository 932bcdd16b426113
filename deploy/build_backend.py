"""setuptools as the build backend of daskmm, which compiles the loops first.

pyproject.toml names this module as the backend and its classes as commands. A wheel for another
platform is built by zig: ``python -m build --wheel -C target=aarch64-linux-musl``.
"""

import platform

import build_loops
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist


def _target(config_settings):
    return (config_settings or {}).get("target")


def get_requires_for_build_wheel(config_settings=None):
    """Return what setuptools needs, and zig where there is no compiler."""
    needed = build_meta.get_requires_for_build_wheel(config_settings)
    return [*needed, *build_loops.requirements(_target(config_settings))]


def get_requires_for_build_editable(config_settings=None):
    """Return what setuptools needs, and zig where there is no compiler."""
    needed = build_meta.get_requires_for_build_editable(config_settings)
    return [*needed, *build_loops.requirements()]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Compile the loops, and pack them with the package."""
    build_loops.build_or_warn(_target(config_settings))
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Compile the loops in their place in the checkout, and link to it."""
    build_loops.build_or_warn()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


class Wheel(bdist_wheel):
    """A wheel for one platform and every Python; for every platform if nothing was compiled."""

    def finalize_options(self):
        """Have setuptools treat the library as it treats an extension module."""
        compiled = any(build_loops.PACKAGE.glob(f"{build_loops.NAME}.*"))
        self.distribution.has_ext_modules = lambda: compiled
        super().finalize_options()

    def get_tag(self):
        """Return the tag of the platform alone."""
        system = super().get_tag()[2]
        # A Python for both processors of macOS compiles for the one that it runs on.
        return "py3", "none", system.replace("universal2", platform.machine())


class Sdist(sdist):
    """Sources, with those of the loops and this backend, and without what was compiled."""

    def make_release_tree(self, base_dir, files):
        """Copy what setuptools does not know of."""
        sources = [*build_loops.SOURCES.iterdir(), *build_loops.TOP.glob("deploy/build_*.py")]
        own = {str(path.relative_to(build_loops.TOP)) for path in sources}
        kept = {file for file in files if build_loops.NAME not in file}
        super().make_release_tree(base_dir, sorted(own | kept))
