"""Numbers that users' code reports, summed up in each process."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rlforge import log_scalar
from rlforge.record.scalars import taken


def test_reports_are_summed_until_they_are_taken():
    taken()
    with ThreadPoolExecutor(4) as threads:
        for value in range(1000):
            threads.submit(log_scalar, "a", value)
    log_scalar("b/c", True)
    assert taken() == {"a": (499_500.0, 1000), "b/c": (1.0, 1)}
    assert taken() == {}


def test_what_is_no_number_or_has_no_name_is_refused():
    with pytest.raises(ValueError, match="needs a name"):
        log_scalar(" ", 1.0)
    with pytest.raises(TypeError):
        log_scalar("a", None)  # type: ignore[arg-type]
    assert taken() == {}
