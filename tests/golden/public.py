"""Prints what of the package is public, for ``test_golden``: it runs in a process of its own."""

from __future__ import annotations

import inspect

import shardwright  # only here, as this is what is shown


def main() -> None:
    """Print all public names with what a user calls, reads and catches, a line for each."""
    for name in sorted(shardwright.__all__):
        value = getattr(shardwright, name)
        if inspect.isclass(value):
            print(f"class {name}")
            annotated = {field for kind in value.__mro__ for field in inspect.get_annotations(kind)}
            for member in sorted({*dir(value), *annotated}):
                if not (member.startswith("_") or hasattr(Exception, member)):
                    print(f"    {member}{shown(getattr(value, member, None), '    ')}")
        else:
            print(f"{name}{shown(value, '')}")
    print("errors")
    tree(shardwright.ShardwrightError, "    ")


def shown(value: object, indent: str) -> str:
    """Give the arguments and the result of a function, each on a line of its own."""
    if not inspect.isfunction(value):
        return ""
    signature = inspect.signature(value)
    lines = []
    for parameter in signature.parameters.values():
        by_name = ", by name only" * (parameter.kind is parameter.KEYWORD_ONLY)
        lines.append(f"\n{indent}    {parameter}{by_name}")
    return "".join([*lines, f"\n{indent}    -> {signature.return_annotation}"])


def tree(kind: type[shardwright.ShardwrightError], indent: str) -> None:
    """Print an error with its exit code, and those below it."""
    others = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
    print(f"{indent}{kind.__name__}, exit {kind.exit_code}, also {', '.join(others) or 'nothing'}")
    for below in sorted(kind.__subclasses__(), key=lambda found: found.__name__):
        if below.__name__ in shardwright.__all__:
            tree(below, indent + "    ")


if __name__ == "__main__":
    main()
