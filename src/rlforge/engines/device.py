"""What an error says of the device that it came from."""

from __future__ import annotations

import torch

#: cudaErrorMemoryAllocation: the one failure of a CUDA call that leaves the device as it was.
_OUT_OF_MEMORY = 2


def is_lost(error: BaseException) -> bool:
    """Whether no later call to the device can succeed in this process.

    So it is after a failed assertion or an illegal access in a kernel: CUDA reports the same error
    for ever. A lack of memory is none of these.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    code = getattr(error, "error_code", None)
    return isinstance(error, torch.AcceleratorError) and code != _OUT_OF_MEMORY
