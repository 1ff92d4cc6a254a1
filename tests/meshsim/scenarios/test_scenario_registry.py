"""From the text of a target to a function, and what is said when there is none."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from meshsim import UsageError
from meshsim.scenarios import BUILT_IN, available, describe_all, load, registry


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_scenarios.py"
    path.write_text(
        "from my_scenarios_neighbour import answer\n\n"
        "def grad_sync(ctx):\n    return answer\n\n"
        "class Checks:\n    @staticmethod\n    def norms(ctx):\n        return 'norms'\n\n"
        "number = 3\n"
    )
    (tmp_path / "my_scenarios_neighbour.py").write_text("answer = 42\n")
    return path


@pytest.fixture(autouse=True)
def _import_system_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", sys.modules)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "my_scenarios" in name:
            del sys.modules[name]


@pytest.fixture
def entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_scenarios_added.py").write_text("def ring(ctx):\n    return 'ring'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        EntryPoint("ring", "my_scenarios_added:ring", registry.ENTRY_POINT_GROUP),
        EntryPoint("gone", "my_scenarios_added:gone", registry.ENTRY_POINT_GROUP),
        EntryPoint("train_step", "my_scenarios_added:ring", registry.ENTRY_POINT_GROUP),
    ]
    monkeypatch.setattr(
        registry, "entry_points", lambda *, group: points if group == "meshsim.scenarios" else []
    )


def message_of(target: object) -> str:
    with pytest.raises(UsageError) as caught:
        load(target)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_loads_and_its_summary_is_its_docstrings_first_line(name: str) -> None:
    scenario = load(name)
    assert callable(scenario)
    assert (scenario.__doc__ or "").splitlines()[0] == dict(describe_all())[name]


def test_built_ins_are_available() -> None:
    assert set(BUILT_IN) <= set(available())


def test_describing_imports_no_scenario() -> None:
    import subprocess

    code = (
        "import sys; from meshsim.scenarios import describe_all; describe_all(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_from_file(scenario_file: Path) -> None:
    assert load(f"{scenario_file}::grad_sync")(None) == 42


def test_from_file_relative_to_the_current_folder(
    scenario_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenario_file.parent)
    assert load("my_scenarios.py::grad_sync")(None) == 42


def test_from_file_attribute_of_a_class(scenario_file: Path) -> None:
    assert load(f"{scenario_file}::Checks.norms")(None) == "norms"


def test_file_is_imported_once_and_again_when_it_changed(scenario_file: Path) -> None:
    target = f"{scenario_file}::grad_sync"
    first = load(target)
    assert load(target) is first
    scenario_file.write_text("def grad_sync(ctx):\n    return 'changed'\n")
    assert load(target)(None) == "changed"


def test_file_that_is_imported_already_is_the_same_module(
    scenario_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(scenario_file.parent))
    module = importlib.import_module("my_scenarios")
    assert load(f"{scenario_file}::grad_sync") is module.grad_sync


def test_from_module(scenario_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(scenario_file.parent))
    assert load("my_scenarios:grad_sync")(None) == 42


@pytest.mark.usefixtures("entry_point")
def test_entry_points_are_listed_after_the_built_ins_which_they_dont_replace() -> None:
    assert available() == (*BUILT_IN, "gone", "ring")
    assert dict(describe_all())["ring"] == "added by an entry point (my_scenarios_added:ring)"
    assert load("ring")(None) == "ring"
    assert load("train_step").__name__ == "train_step"


@pytest.mark.usefixtures("entry_point")
def test_entry_point_to_nothing() -> None:
    text = message_of("gone")
    assert "'gone'" in text
    assert "an entry point (my_scenarios_added:gone)" in text
    assert "there is no 'gone'" in text
    assert "it has ring" in text


def test_unknown_name_lists_the_known_ones_and_the_near_ones() -> None:
    text = message_of("train_stp")
    assert "'train_stp' is unknown" in text
    assert "did you mean train_step?" in text
    assert all(name in text for name in BUILT_IN)
    assert "did you mean" not in message_of("xyzzy")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("missing.py::f", ["missing.py", "isn't there"]),
        ("{folder}::f", ["is a folder"]),
        ("{file}", ["names no function", "my_scenarios.py::name"]),
        ("{file}::grad_snyc", ["no 'grad_snyc'", "did you mean grad_sync?"]),
        ("{file}::zzz", ["no 'zzz'", "it has Checks, grad_sync"]),
        ("{file}::Checks.zzz", ["no 'Checks.zzz'"]),
        ("{file}::number", ["is a int, not a function"]),
        ("{file}::", ["incomplete", "file.py::name"]),
        ("::f", ["incomplete", "file.py::name"]),
        ("{folder}/notes.txt::f", ["not a Python file"]),
        ("no_such_module_here:f", ["no module 'no_such_module_here'"]),
        ("meshsim.no_such_part:f", ["no module 'meshsim.no_such_part'"]),
        ("meshsim:no_such_name", ["no 'no_such_name' in module 'meshsim'"]),
        (":f", ["incomplete", "module:name"]),
        ("meshsim:", ["incomplete", "module:name"]),
        ("  ", ["a scenario is a file.py::name"]),
    ],
)
def test_what_is_wrong_with_a_target(scenario_file: Path, target: str, said: list[str]) -> None:
    (scenario_file.parent / "notes.txt").write_text("")
    text = message_of(target.format(file=scenario_file, folder=scenario_file.parent))
    assert [part for part in said if part not in text] == []


@pytest.mark.parametrize("target", [None, 3, b"train_step"])
def test_not_a_text(target: object) -> None:
    assert "a scenario is a file.py::name" in message_of(target)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "import no_such_dependency_of_it\n",
            "ModuleNotFoundError: No module named 'no_such_dependency_of_it'",
        ),
        ("\n\nraise ValueError('first\\nsecond')\n", "ValueError: first"),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_file_that_fails_on_import(tmp_path: Path, source: str, said: str) -> None:
    path = tmp_path / "my_scenarios_broken.py"
    path.write_text(source)
    text = message_of(f"{path}::f")
    assert said in text
    line = len(source.rstrip("\n").split("\n"))
    assert f"{path}:{line}" in text
    assert not [name for name in sys.modules if "my_scenarios_broken" in name]
    assert str(tmp_path) not in sys.path
