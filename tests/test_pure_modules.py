"""A module that calls itself pure is: whatever it imports, directly or not, there is no clock, loop, client or logger.

The import contract names the packages that are pure as a whole. This covers single modules elsewhere.
"""

import tomllib

import grimp

from tests.support.source_folders import ROOT

PACKAGES = ("headgate", "shard", "coordinator", "controller", "drain", "metrics", "web", "chaos", "scale", "trials")


def forbidden() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    names = next(contract for contract in contracts if contract["name"].startswith("Policy is pure"))[
        "forbidden_modules"
    ]
    return [name for name in names if name != "datetime"]  # they read and write times as text; ruff bans its clock


def says_pure(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    _, docstring, *_ = source.read_text().split('"""', 2)
    return "Pure." in docstring


def test_a_module_that_calls_itself_pure_imports_nothing_that_is_not() -> None:
    graph = grimp.build_graph(
        *PACKAGES, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )
    graph.remove_module("headgate.transport.loopback")  # It looks once whether loopback has an IPv4 address.
    pure = {module for module in graph.modules if module.split(".")[0] in PACKAGES and says_pure(module)}
    impure = {
        name: graph.find_downstream_modules(name, as_package=False) & pure
        for name in forbidden()
        if name in graph.modules
    }

    assert {name: sorted(found) for name, found in impure.items() if found} == {}
    assert len(pure) > 100, "they say so in their docstring"
