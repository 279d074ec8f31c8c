"""Write the `__init__` files of the package: they export the names that its modules list in `__all__`.

A folder exports the names of its modules. The package exports those of all folders, except that a folder in NAMESPACES
is exported as a whole (`dp.datasets.open`), with the names of the folders that NAMESPACES gives it, and is loaded when
it, or a stage that it registers, is first used. `datapipes.stages` exports the names in BUILDERS in its place. A folder
in INNER exports nothing, since the one above it does. A folder in APART needs an extra, so nothing imports it. A folder
in MIRRORS stands for a module of PyG: it hands on the names of that module that are not its own. The docstring and the
version of an `__init__` are kept as they are.

Run: make stubs   (a test fails where a file is out of date)
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "datapipes"
NAMESPACES: dict[str, tuple[str, ...]] = {"datasets": (), "distributed": ("partition",), "stages": ()}
# What those need who write stages, samplers or channels of their own.
BUILDERS = {"CSC", "ChannelBase", "Picks", "RngKey", "Sampled", "Sampler", "SeedStage", "StageGraph", "StreamStage"}
APART = ("pyg", "pyg/distributed", "cli")
INNER = ("partition/methods", "partition/native", "partition/stores")
MIRRORS = {"pyg/loader": "torch_geometric.loader", "pyg/distributed": "torch_geometric.distributed"}

# dir() of a package, and completion, show its public names only.
DIR = """\
def __dir__() -> list[str]:
    return [{}]
"""
# Not for type checkers, which would then allow any name.
GETATTR = """\
if not TYPE_CHECKING:

    def __getattr__(name: str) -> None:
        raise missing_public_name(name, "{}")
"""
LAZY_GETATTR = """\
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in ({}):
            return importlib.import_module(f"datapipes.{{name}}")
        builders = importlib.import_module("datapipes.stages").__all__
        raise missing_public_name(name, ours=f"dp.stages.{{name}}" if name in builders else None)
"""
# Also for type checkers: PyG comes without types, so to them any name of its modules is Any.
HANDED_ON = """\
def __getattr__(name: str) -> Any:
    return handed_on("{}", name)
"""
NEEDED = {"datapipes.compat.other_names": ["missing_public_name"]}  # by GETATTR and LAZY_GETATTR


def public_names(module: Path) -> list[str]:
    """Return what a module lists in `__all__`."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def exports(folder: Path) -> dict[str, list[str]]:
    """Return {module: public names} of a folder and the folders in it."""
    found = {}
    apart = [PACKAGE / each for each in APART if PACKAGE / each not in (folder, *folder.parents)]
    for module in sorted(folder.rglob("*.py")):
        if any(each in module.parents for each in apart):
            continue
        if module.name != "__init__.py" and (names := public_names(module)):
            found[".".join(module.relative_to(PACKAGE.parent).with_suffix("").parts)] = names
    return found


def init_text(folder: Path) -> str:
    """Return the text of a folder's `__init__`, or of the package's."""
    init = folder / "__init__.py"
    tree = ast.parse(init.read_text(encoding="utf-8"))
    docstring = ast.get_docstring(tree, clean=False)
    parts = [f'"""{docstring}"""\n']
    is_root = folder == PACKAGE
    spaces = [name for name in NAMESPACES if is_root and (folder / name).is_dir()]
    hidden = {*spaces, *(name for space in spaces for name in NAMESPACES[space])}
    of_folder = {} if folder.relative_to(PACKAGE).as_posix() in INNER else exports(folder)
    found = {module: names for module, names in of_folder.items() if module.split(".")[1] not in hidden}
    if is_root or folder == PACKAGE / "stages":
        core = exports(PACKAGE) if not is_root else found
        core = {module: [name for name in names if (name in BUILDERS) != is_root] for module, names in core.items()}
        found = {module: names for module, names in core.items() if names}
    for name in NAMESPACES.get(folder.relative_to(PACKAGE).as_posix(), ()):
        found |= exports(PACKAGE / name)
    mirrored = MIRRORS.get(folder.relative_to(PACKAGE).as_posix())
    is_space = folder.relative_to(PACKAGE).as_posix() in NAMESPACES
    imported = {**found, **NEEDED} if is_root or is_space else found
    stages = {f"datapipes.{name}": registered_in(folder / name) for name in spaces}
    if any(stages.values()):
        imported["datapipes.chain.functional"] = [*found["datapipes.chain.functional"], "expect_stages"]
    if mirrored is not None:
        imported = {**found, "datapipes.pyg.torch_geometric_names": ["handed_on", "other_names"]}
    typing = ["TYPE_CHECKING"] * (is_root or is_space) + ["Any"] * (mirrored is not None)
    imports = ["import importlib\n"] * bool(spaces) + [f"from typing import {name}\n\n" for name in typing]
    imports += [_statement(f"from {m} import ", sorted(imported[m], key=_isort)) for m in sorted(imported)]
    if imports:
        parts.append("".join(imports))
    if spaces:
        parts.append(f"if TYPE_CHECKING:\n    from datapipes import {', '.join(spaces)}\n")
    parts += [f'__version__ = "{version}"\n' for version in _versions(tree)]
    names = sorted([*spaces, *(name for listed in found.values() for name in listed)], key=_isort)
    if names:
        parts.append("__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n")
    if mirrored is not None:
        parts[-1] += f'__all__ += other_names("{mirrored}", __all__)\n'
    shown = ["*__all__"] * bool(names) + ['"__version__"'] * bool(_versions(tree))
    for module, expected in stages.items():
        if expected:
            lines = "".join(f'    "{each}",\n' for each in [module, *expected])
            parts.append(f"expect_stages(\n{lines})\n")
    functions = [DIR.format(", ".join(shown))]
    if is_root:
        functions.append(LAZY_GETATTR.format(", ".join(f'"{name}"' for name in spaces)))
    elif is_space:
        functions.append(GETATTR.format(".".join(folder.relative_to(PACKAGE.parent).parts)))
    if mirrored is not None:
        functions.append(HANDED_ON.format(mirrored))
    return "\n".join(parts) + "".join(f"\n\n{function}" for function in functions)


def inits() -> dict[Path, str]:
    """Return {path: text} of all `__init__` files."""
    return {init: init_text(init.parent) for init in sorted(PACKAGE.rglob("__init__.py"))}


def _versions(tree: ast.Module) -> list[str]:
    """Return the version that an `__init__` states, if it does."""
    assignments = [node for node in tree.body if isinstance(node, ast.Assign)]
    return [ast.literal_eval(node.value) for node in assignments if ast.unparse(node.targets[0]) == "__version__"]


def registered_in(folder: Path) -> list[str]:
    """Return the functional names of the stages that the modules of a folder register."""
    text = "".join(module.read_text(encoding="utf-8") for module in sorted(folder.rglob("*.py")))
    return sorted(re.findall(r'^@register_stage\("(\w+)"\)', text, re.MULTILINE))


def _statement(begin: str, names: list[str]) -> str:
    line = f"{begin}{', '.join(names)}\n"
    return line if len(line) <= 121 else f"{begin}(\n" + "".join(f"    {name},\n" for name in names) + ")\n"


def _isort(name: str) -> tuple[int, str]:
    """Order names as the linter does: CONSTANTS, Classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


if __name__ == "__main__":
    for path, text in inits().items():
        path.write_text(text, encoding="utf-8")
