"""Objects that the garbage collector leaves out, for ever or for a block."""

import gc
import weakref

import pytest

from rlforge.system.garbage import freeze_gc, frozen_gc


class _Knot:
    """Refers to itself: only the garbage collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed():
    gc.unfreeze()
    yield
    freeze_gc()  # as tests/conftest.py has it for all others


def test_frozen_objects_are_not_traversed_and_later_garbage_is_freed():
    before = [_Knot() for _ in range(1000)]
    garbage = weakref.ref(_Knot())
    freeze_gc()
    assert garbage() is None  # freed first: it could not be found afterwards
    assert gc.get_freeze_count() > len(before)
    assert not any(isinstance(each, _Knot) for each in gc.get_objects())
    after = weakref.ref(_Knot())
    gc.collect()
    assert after() is None


def test_after_the_outermost_block_all_objects_are_traversed_again():
    before = _Knot()
    with frozen_gc():
        with frozen_gc():
            pass
        assert not any(each is before for each in gc.get_objects())
    assert any(each is before for each in gc.get_objects())
    assert gc.get_freeze_count() == 0
