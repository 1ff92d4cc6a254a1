"""What a test's body is given on the ranks: fixtures' values, and stand-ins for pytest's own fixtures."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.collecting import MeshTest, mesh_test
from meshsim.pytest_plugin.property_tests import inner_test
from meshsim.pytest_plugin.ranks import builtin_fixtures
from meshsim.pytest_plugin.ranks.body import SELF, MeshBody
from meshsim.pytest_plugin.ranks.recipe import OnRank
from meshsim.pytest_plugin.ranks.settings import RankSettings
from meshsim.pytest_plugin.ranks.subtests import RankSubtests
from meshsim.pytest_plugin.ranks.values import CannotBePrivate, RankValues

_RECORDERS = ("record_property", "record_testsuite_property", "record_xml_attribute")
_DESCRIPTOR_ADVICE = (
    "it captures file descriptors, which the ranks of one process share; use capsys, which works per rank in "
    "every world"
)


def mesh_body(item: pytest.Function, settings: RankSettings) -> MeshBody:
    """The scenario that runs an item's function with the values of its fixtures.

    CannotBePrivate names the fixture or parameter of which ranks can't get a copy.
    """
    function, instance = _function_of(item)
    values = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    return _body(item, settings, function, instance, values)


def example_body(item: pytest.Function, settings: RankSettings, example: Mapping[str, Any]) -> MeshBody:
    """The scenario for one of Hypothesis's examples: ``example`` has all arguments by name."""
    function, instance = _function_of(item)
    values = {name: value for name, value in example.items() if value is not instance}
    return _body(item, settings, inner_test(function), instance, values)


def _body(
    item: pytest.Function, settings: RankSettings, function: Any, instance: Any, arguments: dict[str, Any]
) -> MeshBody:
    values = RankValues()
    if instance is not None:
        values.add(SELF, instance, f"self, the instance of {type(instance).__name__}")
    # In the order in which pytest has set them up, autouse fixtures first.
    for name, value in {**item.funcargs, **arguments}.items():
        if name in arguments or isinstance(value, OnRank):
            values.add(name, _on_rank(item, name, value), _label(item, name))
    values.check()
    return MeshBody(function, tuple(arguments), values, settings)


def _function_of(item: pytest.Function) -> tuple[Any, Any]:
    """The function, and the instance that it is to be called on."""
    bound = item.obj
    instance = getattr(bound, "__self__", None)
    if inspect.ismethod(bound) and not isinstance(instance, type):
        return bound.__func__, instance
    return bound, None


def _label(item: pytest.Function, name: str) -> str:
    return f"{'parameter' if pytest_private.is_parameter(item, name) else 'fixture'} {name!r}"


def _on_rank(item: pytest.Function, name: str, value: Any) -> Any:
    """A stand-in for what only pytest's own process has; any other value as it is."""
    if isinstance(value, OnRank):
        value.keywords = {key: _on_rank(item, key, part) for key, part in value.keywords.items()}
        return value
    label = f"fixture {name!r}"
    if isinstance(value, pytest.FixtureRequest):
        return OnRank(builtin_fixtures.request, label, _request_facts(item, value))
    if isinstance(value, pytest.MonkeyPatch):
        return OnRank(builtin_fixtures.monkeypatch, label)
    if isinstance(value, pytest.LogCaptureFixture):
        return OnRank(builtin_fixtures.caplog, label)
    if isinstance(value, pytest.WarningsRecorder):
        return OnRank(builtin_fixtures.recwarn, label)
    if isinstance(value, pytest.CaptureFixture):
        return OnRank(builtin_fixtures.capsys, label, (_is_binary(name, value),))
    if isinstance(value, pytest.Config):
        return _config(value)
    if name in _RECORDERS:
        return builtin_fixtures.Recorder(name)
    if name == "subtests":
        return OnRank(RankSubtests, label)
    return value


def _is_binary(name: str, value: Any) -> bool:
    kind = value.captureclass.__name__
    if kind.startswith("FD"):
        raise CannotBePrivate(f"fixture {name!r} can't work on the ranks: {_DESCRIPTOR_ADVICE}")
    return "Binary" in kind


def _config(config: pytest.Config) -> builtin_fixtures.RankConfig:
    options = {key: value for key, value in vars(config.option).items() if _is_plain(value)}
    ini = {key: value for key, value in pytest_private.known_ini(config).items() if _is_plain(value)}
    return builtin_fixtures.RankConfig(options, ini, config.rootpath)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, str | bytes | int | float | bool)


def _request_facts(item: pytest.Function, request: Any) -> tuple[Any, ...]:
    node = builtin_fixtures.RankNode(
        item.name, item.nodeid, item.originalname, frozenset(map(str, item.keywords))
    )
    facts: dict[str, Any] = {"scope": request.scope, "fixturename": request.fixturename}
    for name in ("param", "function", "cls"):
        value = getattr(request, name, None)
        if value is not None:
            facts[name] = value
    facts["module_name"] = getattr(item.module, "__name__", "")
    return node, _config(item.config), facts


def context_recipe(request: pytest.FixtureRequest, name: str) -> OnRank:
    """The value of the fixtures ``rank_context`` and ``mesh_context`` in pytest's own process."""
    _mesh_test_of(request, name)
    return OnRank(getattr(builtin_fixtures, name), f"fixture {name!r}")


def topology_of(request: pytest.FixtureRequest) -> str:
    """The topology of the test that asks."""
    return _mesh_test_of(request, "mesh_topology").case.topology


def _mesh_test_of(request: pytest.FixtureRequest, name: str) -> MeshTest:
    test = mesh_test(request.node)
    if test is None:
        pytest.fail(
            f"fixture {name!r} is for mesh tests: mark {request.node.nodeid} with "
            "@pytest.mark.mesh('dp=2,tp=2')",
            pytrace=False,
        )
    return test
