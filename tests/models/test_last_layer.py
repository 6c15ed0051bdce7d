"""A last layer that computes some positions only, the trial before, and its tolerance."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from tests import factories

from rlforge.models import last_layer
from rlforge.models.last_layer import LastLayer, predicts_the_same, same_up_to_rounding

HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture
def model():
    return factories.llama(num_key_value_heads=1, initializer_range=0.3)


@torch.no_grad()
def test_read_positions_are_unchanged_and_only_they_are_computed(model):
    ids, read = torch.arange(20)[None], torch.tensor([7, 19])
    rows = []
    for layer in model.model.layers:
        layer.mlp.gate_proj.register_forward_pre_hook(
            lambda _, inputs: rows.append(inputs[0].shape[1])
        )
    expected = model.model(ids).last_hidden_state[0, read]
    with LastLayer(model.model).read_at(read, 20) as left_out:
        actual = model.model(ids).last_hidden_state[0, read]
    torch.testing.assert_close(actual, expected)
    assert left_out == 18
    assert rows == [20, 20, 20, 2]


def test_the_layer_is_restored_even_after_an_error(model):
    mlp = model.model.layers[-1].mlp
    own = mlp.forward = lambda x: x
    layer = LastLayer(model.model)

    def fail():
        with layer.read_at(torch.tensor([1]), 9):
            assert mlp.forward is not own
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert mlp.forward is own
    assert all("forward" not in vars(module) for module in layer.modules if module is not mlp)


def test_all_positions_are_computed_when_half_of_them_are_read(model):
    mlp = model.model.layers[-1].mlp
    with LastLayer(model.model).read_at(torch.arange(5), 10) as left_out:
        assert "forward" not in vars(mlp)
    assert left_out == 0


def test_a_model_that_predicts_differently_is_found_by_a_trial(model, caplog):
    caplog.set_level("INFO")
    model.train()
    assert predicts_the_same(model)
    assert model.training
    assert not caplog.messages
    own = model.model.layers[-1].mlp.forward
    model.model.layers[-1].mlp.forward = lambda x: own(x).cumsum(1)  # it mixes positions
    assert not predicts_the_same(model)
    model.model.layers[-1].mlp.forward = lambda x: (own(x), None)  # it gives more than one tensor
    assert not predicts_the_same(model)
    assert ["differently" in m or "its layer fails" in m for m in caplog.messages] == [True, True]
    assert all("last layer of LlamaForCausalLM is computed whole" in m for m in caplog.messages)


def test_a_lost_device_is_no_difference(model):
    """Later calls fail, too; lack of memory passes."""
    lost = torch.AcceleratorError("CUDA error")
    own = model.model.layers[-1].mlp.forward

    def fail(error, x):
        if x.shape[1] < 9:
            raise error
        return own(x)

    model.model.layers[-1].mlp.forward = partial(fail, lost)
    with pytest.raises(torch.AcceleratorError):
        predicts_the_same(model)
    model.model.layers[-1].mlp.forward = partial(fail, torch.OutOfMemoryError("full"))
    assert not predicts_the_same(model)
    ones = partial(torch.ones, 2)
    short = partial(fail, ValueError("short"), ones()[None])
    assert last_layer.difference(short, ones).startswith("fails")


def test_under_autocast_the_tolerance_is_that_of_its_dtype(model):
    mlp = model.model.layers[-1].mlp
    own = mlp.forward
    mlp.forward = lambda x: own(x) * (1 if x.shape[1] == 9 else 1.002)
    assert not predicts_the_same(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert predicts_the_same(model)


@pytest.mark.parametrize(
    ("dtype", "autocast", "error", "same"),
    [
        (torch.float32, False, 1e-6, True),
        (torch.float32, False, 1e-3, False),
        (torch.float32, True, 1e-3, True),
        (torch.float32, True, 0.1, False),
        *((dtype, False, 0.01, True) for dtype in HALVES),
        *((dtype, False, 0.1, False) for dtype in HALVES),
    ],
)
def test_the_tolerance_follows_the_dtype_of_the_computation(dtype, autocast, error, same):
    torch.manual_seed(0)
    expected = torch.randn(7, 40, dtype=torch.float64)
    actual = expected * (1 + error)
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        assert same_up_to_rounding(actual.to(dtype), expected.to(dtype)) is same


def test_nan_is_never_the_same():
    broken = torch.full((3,), float("nan"))
    assert not same_up_to_rounding(broken, broken)
    assert not same_up_to_rounding(torch.ones(3), torch.zeros(3))


@pytest.mark.parametrize("training", [True, False])
def test_the_training_mode_is_restored_even_after_an_error(training):
    model = torch.nn.Dropout().train(training)

    def fail():
        with last_layer.evaluating(model):
            assert not model.training
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert model.training is training
