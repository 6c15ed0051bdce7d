"""A vLLM that serves wrong weights fails the trial of ``engine=auto``.

Its engine is of this module alone: what it has under the wrong ids stays.
"""

from __future__ import annotations

import dataclasses

import pytest

from rlforge.engines.versions import AdapterTable
from rlforge.errors import EngineError
from rlforge.learner.engine_trial import try_out

pytestmark = pytest.mark.vllm


async def test_adapters_that_share_an_id_fail_the_trial(engine, make_config, monkeypatch):
    """vLLM goes on with the weights that it has under the id."""
    use = AdapterTable.use

    def under_one_id(table, key):
        adapter = use(table, key)
        return None if adapter is None else dataclasses.replace(adapter, number=10**6)

    monkeypatch.setattr(AdapterTable, "use", under_one_id)
    with pytest.raises(EngineError, match=r"the learner's, .*; adapter \d has answered instead"):
        await try_out(engine, make_config(), "cpu")
