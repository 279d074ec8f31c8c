"""The kernels as Triton compiles them, which needs no GPU, and the package without triton. Each in a child process."""

import json
from typing import Any

import pytest
from amounts import amount
from count_code import MODULES
from scripts import run_fresh, run_script

COMPILE = """
import json, re, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from datapipes.device import kernels

def instructions(arch, ids, table, units, lanes, bits, decoded, places, kept=False):
    signature = {
        "table": table, "ids": ids, "out": "*u8", "places": "*i64" if places else "constexpr",
        "cached": "*u8" if kept else "constexpr", "slots": "*i64" if kept else "constexpr",
        "scale": "*fp32" if decoded == "int8" else "constexpr", "missing": "*i64", "num_ids": "i32", "count": "i32",
        "stride": "i32", "num_tiles": "i32", "UNITS": "constexpr", "LANES": "constexpr", "BITS": "constexpr",
        "DECODED_FROM": "constexpr", "TILE": "constexpr",
    }
    names = list(signature)
    constants = {"UNITS": units, "LANES": lanes, "BITS": bits, "DECODED_FROM": decoded, "TILE": 512 * 4}
    constants |= {name: None for name in ("places", "cached", "slots", "scale") if signature[name] == "constexpr"}
    aligned = [name for name in ("out", "places", "cached", "slots", "scale", "missing") if name not in constants]
    aligned += ["table"] if lanes * bits == 128 else []
    source = ASTSource(
        kernels.gather_rows, signature, {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    made = compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 16, "enable_fp_fusion": False})
    wanted = r"\\b((?:ld|st|red|atom)\\.(?:global|shared)[\\w.]*|bar\\.sync|mul\\.[\\w.]*f32)"
    return re.findall(wanted, made.asm["ptx"])

print(json.dumps([instructions(*case) for case in json.loads(sys.argv[1])]))
"""

# Bytes of a row, of a unit: (UNITS, LANES, BITS).
ROWS = {512: (32, 4, 32), 400: (25, 4, 32), 128: (8, 4, 32), 104: (13, 2, 32), 100: (25, 1, 32), 4: (1, 1, 32)}


def printed(script: str, *arguments: str) -> Any:
    """Return the JSON that a script prints, in which kernels are compiled and not interpreted."""
    child = run_fresh(script, *arguments, unset=["TRITON_INTERPRET"])
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def compiled(cases: list[tuple]) -> list[list[str]]:
    """Return the memory instructions of the gather for each (arch, ids, table, UNITS, LANES, BITS, decoded, places)."""
    return printed(COMPILE, json.dumps(cases))


def test_rows_are_loaded_and_stored_16_bytes_at_once_wherever_alignment_allows():
    pytest.importorskip("triton")
    cases = {name: (90, "*i64", "i64", *unit, "", False) for name, unit in ROWS.items()}
    cases["400 on the device"] = 90, "*i32", "*u8", *ROWS[400], "", False
    cases["512 sorted"] = 80, "*i32", "i64", *ROWS[512], "", True
    cases |= {name: (90, "*i64", "i64", 32, 4, bits, name, False) for name, bits in DECODED.items()}
    cases = amount(cases, {name: cases[name] for name in (104, 4, "400 on the device", "512 sorted", "int8")})
    of_case = dict(zip(cases, compiled([*cases.values()]), strict=True))
    for name in cases.keys() & ROWS.keys():
        width = {512: "v4.b32", 400: "v4.b32", 128: "v4.b32", 104: "v2.b32", 100: "b32", 4: "b32"}[name]
        found = of_case[name]
        assert [each for each in found if each.startswith("st.global")] == [f"st.global.{width}"] * 4, name
        assert found.count(f"ld.global.{width}") == 4, name
        assert found.count("ld.global.b64") == 4, name  # the ids, one for each unit
    assert of_case["400 on the device"].count("ld.global.v4.b32") == 4
    assert of_case["512 sorted"].count("ld.global.v4.b32") == 4
    assert of_case["512 sorted"].count("st.global.v4.b32") == 4
    for name in cases.keys() & DECODED.keys():
        width = {"float16": "v2.b32", "bfloat16": "v2.b32", "int8": "b32"}[name]
        assert of_case[name].count(f"ld.global.{width}") == 4, name
        assert of_case[name].count("st.global.v4.b32") == 4, name
    for name, found in of_case.items():  # threads neither wait for each other nor pass values on
        assert not [each for each in found if "shared" in each or each.startswith("bar")], name
    assert [each for each in of_case["int8"] if "mul" in each] == ["mul.rn.f32"] * 16  # subnormal values stay


@pytest.mark.full
def test_rows_at_an_address_of_32_bits_are_read_as_others_are():
    pytest.importorskip("triton")
    units = [(*ROWS[512], ""), (*ROWS[100], ""), (32, 4, 16, "float16"), (32, 4, 8, "int8")]
    low, high = (compiled([(90, "*i64", table, *unit, False) for unit in units]) for table in ("i32", "i64"))
    assert low == high


@pytest.mark.full
def test_rows_of_a_cache_are_loaded_as_wide_as_those_of_the_table():
    pytest.importorskip("triton")
    for found in compiled(
        [(90, "*i64", "i64", *ROWS[400], "", False, True), (80, "*i32", "*u8", *ROWS[400], "", True, True)]
    ):
        assert found.count("ld.global.v4.b32") == 8
        assert [each for each in found if each.startswith("st.global")] == ["st.global.v4.b32"] * 4
        assert not [each for each in found if "shared" in each or each.startswith("bar")]


OF_THE_CACHE = """
import json, re
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from datapipes.device import kernels
from datapipes.features.gpu_cached_feature import _CHOSEN, _LOOKED_UP

def instructions(kernel, ids, ways, tile, num_warps):
    signature = {name: "*i64" for name in kernel.arg_names}
    signature |= {name: "i32" for name in ("num_ids", "count", "num_sets", "per_set", "now") if name in signature}
    signature |= {"WAYS": "constexpr", "TILE": "constexpr"} | ({"ids": ids} if "ids" in signature else {})
    constants = {(list(signature).index("WAYS"),): ways, (list(signature).index("TILE"),): tile}
    source = ASTSource(kernel, signature, constants)
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
    return re.findall(r"\\b((?:ld|st|atom|red)\\.global[\\w.]*)", made.asm["ptx"])

print(json.dumps([
    [instructions(kernels.look_up, ids, ways, _LOOKED_UP, 4) for ids in ("*i32", "*i64") for ways in (1, 16)],
    [instructions(kernels.choose_slots, None, ways, _CHOSEN, 1) for ways in (1, 2, 16)],
]))
"""


@pytest.mark.full
def test_the_kernels_of_the_cache_compile_and_slots_are_chosen_by_stamps_as_they_were():
    pytest.importorskip("triton")
    looked_up, chosen = printed(OF_THE_CACHE)
    for found in looked_up:
        assert len([each for each in found if each.startswith(("atom", "red"))]) == 2  # once a program, for each count
    for found in chosen:
        first = next(number for number, each in enumerate(found) if each.startswith("st"))
        assert {each[:2] for each in found[first:]} == {"st"}  # a warp stores nothing that it loads later


DECODED = {"float16": 16, "bfloat16": 16, "int8": 8}

WITHOUT = """
import importlib, json, sys
sys.modules["triton"] = None
failed = dict()
for name in {names}:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)

import torch
from datapipes.device.gather import gather
from datapipes.device.missing_ids import MissingIds
ids = torch.zeros(1, dtype=torch.int64)
try:
    gather(torch.ones(3), ids, missing=MissingIds("test", 3, ids.device))
except ImportError as error:
    failed["a gather"] = str(error)
print(json.dumps(failed))
"""


def test_modules_that_name_triton_can_be_imported_without_it_and_a_gather_says_what_to_install():
    """No other module imports it: test_no_optional_dependency_is_imported_at_the_top_of_a_module."""
    names = [name for name, path in MODULES.items() if "triton" in path.read_text(encoding="utf-8")]
    assert "datapipes.device.kernels" in names
    child = run_script(WITHOUT.format(names=names))
    assert child.returncode == 0, child.stderr
    failed = json.loads(child.stdout)
    assert "pip install triton (in the extra [gpu] of" in failed.pop("a gather")
    assert failed == {}
