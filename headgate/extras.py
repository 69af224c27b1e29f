"""What to install where a package is missing. Printed commands ask no index for a distribution of headgate.

None of them is on PyPI, so their names could become those of other programs. A remedy names the packages of the extra.
"""

import shlex


def install_extra(extra: str, distribution: str = "headgate-client") -> str:
    """Return the command that installs the packages of an extra."""
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 - not needed to print help

    try:
        named = [each.replace('"', "'").partition(";") for each in requires(distribution) or ()]
    except PackageNotFoundError:  # Its sources were copied, as Spark does with `--py-files`.
        return f"install the packages of the extra {extra} of {distribution}"
    packages = [package for package, _, marker in named if marker.strip() == f"extra == '{extra}'"]
    return f"python3 -m pip install {shlex.join(packages)}"


def install_daemon(extra: str = "") -> str:
    """Return the command that installs the daemon, with ``extra`` in brackets."""
    return f"in a clone of headgate: python3 -m pip install . './daemon{extra}'"
