"""Values of a failed ``assert`` in a module whose assertions pytest has not rewritten.

Worked out afterwards from the frame. Nothing is evaluated that could run the user's code or communicate:
names, constants, plain containers and a few functions of them; where the statement has anything else it is
left alone.
"""

from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

from meshsim.pytest_plugin import pytest_private

_CONTAINERS = (list, tuple, dict, set, frozenset, str, bytes, range)
_FUNCTIONS = ("len", "sorted", "list", "tuple", "set", "dict", "type", "sum", "min", "max", "abs")
_OPERATORS = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}


class _NotPlain(Exception):
    """The expression holds something that isn't evaluated."""


def explain_plain_assertion(error: BaseException) -> None:
    """Give an ``AssertionError`` without a message the values that were compared."""
    tb = error.__traceback__
    if type(error) is not AssertionError or error.args or tb is None:
        return
    while tb.tb_next is not None:
        tb = tb.tb_next
    statement = _statement(tb.tb_frame, tb.tb_lineno)
    if statement is None:
        return
    try:
        error.args = (_explanation(statement.test, tb.tb_frame),)
    except Exception:  # noqa: BLE001 - a faulty __repr__, or not plain: the failure is shown as it is
        return


def _statement(frame: FrameType, line: int) -> ast.Assert | None:
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    return next(
        (node for node in _asserts(tree) if node.lineno <= line <= (node.end_lineno or node.lineno)), None
    )


def _asserts(tree: ast.AST) -> Iterator[ast.Assert]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Assert))


def _explanation(test: ast.expr, frame: FrameType) -> str:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = _value(test.left, frame), _value(test.comparators[0], frame)
        return pytest_private.comparison_message(_OPERATORS[type(test.ops[0])], left, right)
    return f"assert {_value(test, frame)!r}"


def _value(node: ast.expr, frame: FrameType) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return _named(node.id, frame)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind(_value(item, frame) for item in node.elts)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_value(_key(key), frame): _value(item, frame) for key, item in pairs}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(_value(node.operand, frame))
    if isinstance(node, ast.Attribute):
        return _attribute(_value(node.value, frame), node.attr)
    if isinstance(node, ast.Subscript):
        return _container(_value(node.value, frame))[_value(node.slice, frame)]
    if isinstance(node, ast.Call):
        return _called(node, frame)
    raise _NotPlain


def _named(name: str, frame: FrameType) -> Any:
    scopes: tuple[Mapping[str, Any], ...] = (frame.f_locals, frame.f_globals, vars(builtins))
    for scope in scopes:
        if name in scope:
            return scope[name]
    raise _NotPlain


def _key(node: ast.expr | None) -> ast.expr:
    if node is None:
        raise _NotPlain
    return node


def _number(value: Any) -> Any:
    if type(value) not in (int, float):
        raise _NotPlain
    return value


def _container(value: Any) -> Any:
    if type(value) not in _CONTAINERS:
        raise _NotPlain
    return value


def _attribute(owner: Any, name: str) -> Any:
    # Properties may run anything; what an object or a module simply holds doesn't.
    if isinstance(owner, ModuleType) or name in getattr(owner, "__dict__", {}):
        return getattr(owner, name)
    raise _NotPlain


def _called(node: ast.Call, frame: FrameType) -> Any:
    if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS or node.keywords:
        raise _NotPlain
    function = getattr(builtins, node.func.id)
    if _named(node.func.id, frame) is not function:
        raise _NotPlain
    arguments = [_value(argument, frame) for argument in node.args]
    if function is not type:
        arguments = [_number(a) if function is abs else _container(a) for a in arguments]
    return function(*arguments)
