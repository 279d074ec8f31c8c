"""Let a CUDA build of torch run without the CUDA libraries, on processors alone.

Some registries have no CPU build of a torch for Linux, and the libraries that a CUDA build needs are gigabytes. This
writes a small library in the place of each that is missing. It defines the functions that torch looks for; each answers
"no device", so `torch.cuda.is_available()` is False and everything that runs on a processor works. Only environments
that are made for tests get them.

Run: python tools/stand_in_for_cuda.py SITE_PACKAGES   (needs pyelftools and a C compiler)
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from elftools.elf.elffile import ELFFile

PREFIXES = ("libcu", "libnv", "libnccl")
NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE


def stand_in_for_cuda(site_packages: Path) -> list[str]:
    """Write the libraries of CUDA that torch needs and that are not there; return their names."""
    folder = site_packages / "torch" / "lib"
    needed: set[str] = set()
    defined: set[str] = set()
    undefined: dict[str, tuple[str, str]] = {}  # {symbol: (library, version)}, "" where none is told
    for path in folder.glob("*.so*"):
        with path.open("rb") as file:
            libraries, own, looked_for = _symbols(ELFFile(file))
        needed |= libraries
        defined |= own
        undefined |= looked_for
    # Where torch looks. Others bring libraries of these names for themselves, as triton does.
    there = {path.name for place in (folder, site_packages / "nvidia") for path in place.rglob("lib*")}
    missing = sorted(name for name in needed - there if name.startswith(PREFIXES))
    functions: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in missing}
    for symbol, (library, version) in undefined.items():
        if library in functions:
            functions[library][version].append(symbol)
        elif missing and not library and symbol not in defined and symbol.startswith(("cu", "nccl", "nv")):
            functions[missing[0]][""].append(symbol)  # a symbol without a version is found in any library
    for name in missing:
        _write(folder / name, functions[name])
    return missing


def _symbols(elf: ELFFile) -> tuple[set[str], set[str], dict[str, tuple[str, str]]]:
    """Return the libraries that a library needs, the symbols it defines, and where it looks for the others."""
    versions = {}
    if section := elf.get_section_by_name(".gnu.version_r"):
        for need, parts in section.iter_versions():
            versions |= {part.entry["vna_other"]: (need.name, part.name) for part in parts}
    numbers = elf.get_section_by_name(".gnu.version")
    defined, undefined = set(), {}
    for index, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        if symbol["st_shndx"] != "SHN_UNDEF":
            defined.add(symbol.name)
        elif symbol.name:
            number = numbers.get_symbol(index)["ndx"] if numbers else 0
            undefined[symbol.name] = versions.get(number, ("", ""))
    dynamic = elf.get_section_by_name(".dynamic")
    libraries = {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
    return libraries, defined, undefined


def _write(library: Path, functions: dict[str, list[str]]) -> None:
    """Compile a library whose functions answer "no device", under the versions that torch looks for."""
    names = sorted(name for group in functions.values() for name in group)
    texts = [f'char *{name}(void) {{ return "no CUDA"; }}' for name in names if name.endswith(("String", "Name"))]
    texts += [f"long {name}(void) {{ return {NO_DEVICE}; }}" for name in names if not name.endswith(("String", "Name"))]
    nodes = [f"{version} {{ {'; '.join(group)}; }};" for version, group in functions.items() if version]
    script = library.with_name(library.name + ".versions")
    script.write_text("\n".join(nodes), encoding="utf-8")
    command = ["cc", "-shared", "-fPIC", "-w", "-x", "c", "-", f"-Wl,-soname,{library.name}", "-o", str(library)]
    command += [f"-Wl,--version-script={script}"] if nodes else []
    subprocess.run(command, input="\n".join(texts) or "int empty;", text=True, check=True)
    script.unlink()


if __name__ == "__main__":
    print("stands in for", *stand_in_for_cuda(Path(sys.argv[1])))
