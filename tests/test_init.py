"""The names of ``rlforge`` stay what they are after any import of its modules."""

import importlib.util

import rlforge


def test_no_public_name_is_the_name_of_a_module():
    # Importing a module sets it as an attribute of its package, in the place of the public name.
    hidden = [name for name in rlforge.__all__ if importlib.util.find_spec(f"rlforge.{name}")]
    assert hidden == []
