import pytest


@pytest.fixture(autouse=True)
def _double_precision():
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
