"""Answers as NVML's module does, about the GPUs whose rows are written at its end.

A row is uuid, name, MiB, capability; then MiB in use, watts, their limit and percent busy, where
``-`` is not measured. No rows: there is no driver.
"""

# ruff: noqa: N801, N802, N816, N818 - its names

import types

GPUS = []
nvmlMemory_v2 = 2


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


def nvmlInit():
    if not GPUS:
        raise NVMLError("Driver Not Loaded")


def nvmlDeviceGetCount():
    return len(GPUS)


def nvmlDeviceGetHandleByIndex(index):
    return GPUS[index]


def nvmlDeviceGetUUID(gpu):
    return gpu[0]


def nvmlDeviceGetName(gpu):
    return gpu[1]


def nvmlDeviceGetMemoryInfo(gpu, version=None):
    used = _number(gpu, 4) if version else 0
    return types.SimpleNamespace(total=int(_number(gpu, 2) * 2**20), used=int(used * 2**20))


def nvmlDeviceGetCudaComputeCapability(gpu):
    return tuple(map(int, gpu[3].split(".")))


def nvmlDeviceGetPowerUsage(gpu):
    return int(_number(gpu, 5) * 1000)


def nvmlDeviceGetPowerManagementLimit(gpu):
    return int(_number(gpu, 6) * 1000)


def nvmlDeviceGetUtilizationRates(gpu):
    return types.SimpleNamespace(gpu=int(_number(gpu, 7)))


def _number(gpu, place):
    if gpu[place] == "-":
        raise NVMLError_NotSupported
    return float(gpu[place])
