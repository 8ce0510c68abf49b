"""The processor of this machine, as LLVM knows it."""

import platform
import re
from pathlib import Path

import tvm


def host() -> tuple[str, tuple[str, ...]]:
    """The name of this CPU, and its features that the machine does not have.

    LLVM knows an Intel CPU by its model number, and a virtual machine may withhold features of it.
    """
    cpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return cpu, ()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    if platform.machine() != "x86_64" or found is None:
        return cpu, ()
    present = {flag.replace("_", "") for flag in found.group(1).split()}
    has = tvm.get_global_func("target.target_has_feature")
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    return cpu, tuple(
        feature
        for feature in ("avx", "avx2", "fma", "f16c", "bmi", "bmi2", *_AVX512, *_AMX)
        if has(feature, target) and _flag(feature) not in present
    )


_AVX512 = tuple(
    f"avx512{part}"
    for part in ("f", "bw", "cd", "dq", "vl", "vbmi", "vbmi2", "vnni", "bitalg", "bf16", "fp16")
)
_AMX = ("amx-tile", "amx-int8", "amx-bf16")


def _flag(feature: str) -> str:
    """What Linux calls an LLVM feature, without underscores."""
    return {"bmi": "bmi1"}.get(feature, feature.replace("-", "").replace("_", ""))
