"""The pytest plugin: ``@pytest.mark.mesh`` runs a test's body on every rank of a mesh.

Loaded by pytest wherever meshsim is installed. Without mesh tests it does nothing, and imports no torch.

Tried together with other plugins:

===================  ==========================================================================
pytest-xdist         each of its workers runs whole mesh tests, with gloo workers of its own
pytest-cov           what only one rank runs is counted, in the fake world and in gloo workers;
                     not what a rank ran that was stopped or killed
pytest-timeout       ends a test with ``signal``; the next test gets new workers
pytest-randomly      shuffles mesh tests; random numbers on the ranks come from the run's seed
pytest-rerunfailures runs the whole test again, on all ranks
pytest-asyncio       coroutines run on each rank in an event loop of its own; fixtures that are
                     bound to the parent's loop can't be sent to the ranks
Hypothesis           draws examples once, in pytest's process; each is a run on all ranks
``--pdb``            opens at the odd rank's frame in the fake world; a gloo worker's frames are gone
===================  ==========================================================================
"""

from __future__ import annotations

from typing import Any

import pytest

from meshsim.pytest_plugin.collecting import TOPOLOGY_PARAM
from meshsim.pytest_plugin.ledger_hooks import LedgerKeeper
from meshsim.pytest_plugin.marker import MARKER_HELP
from meshsim.pytest_plugin.options import add_options, read_options
from meshsim.pytest_plugin.session import MeshSession

__all__ = [
    "MeshSession",
    "class_tmpdir",
    "mesh_context",
    "mesh_topology",
    "pytest_addoption",
    "pytest_configure",
    "rank_context",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)
    config.addinivalue_line(
        "markers", "world_size(n): ranks of a test method in a meshsim.compat.DistributedTest class"
    )
    options = read_options(config)
    config.pluginmanager.register(MeshSession(options), "meshsim-session")
    config.pluginmanager.register(LedgerKeeper(options), "meshsim-ledger")


@pytest.fixture
def rank_context(request: pytest.FixtureRequest) -> Any:
    """The rank's ``RankContext``: rank, world size, device, mesh, seed. Only in mesh tests."""
    from meshsim.pytest_plugin.arguments import context_recipe

    return context_recipe(request, "rank_context")


@pytest.fixture
def mesh_context(request: pytest.FixtureRequest) -> Any:
    """The rank's ``MeshContext``: plan, device meshes and the rank's place in them. Only in mesh tests."""
    from meshsim.pytest_plugin.arguments import context_recipe

    return context_recipe(request, "mesh_context")


@pytest.fixture(name=TOPOLOGY_PARAM)
def mesh_topology(request: pytest.FixtureRequest) -> str:
    """The text of the topology that the test runs on, such as ``dp=2,tp=2``. Only in mesh tests."""
    from meshsim.pytest_plugin.arguments import topology_of

    return topology_of(request)


@pytest.fixture(scope="class")
def class_tmpdir(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder that the tests and distributed fixtures of one class share."""
    return tmp_path_factory.mktemp("class_tmpdir")
