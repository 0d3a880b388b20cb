"What a processor multiplies matrices by: timings of two are not to be mixed."
import torch


def instructions() -> str:
    "The vector instructions that torch uses, and the bfloat16 arithmetic that is there, such as AVX512 + bfloat16."
    found = [torch.backends.cpu.get_cpu_capability()]
    if torch.cpu._is_avx512_bf16_supported(): found.append("bfloat16")
    if torch.cpu._is_amx_tile_supported(): found.append("AMX")
    return " + ".join(found)
