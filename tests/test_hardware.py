"""What is written beside a measurement. (What profiles become is tested with the graph.)"""

import os
import platform
from importlib.metadata import version

from rlforge.hardware import describe, versions


def test_a_machine_is_described_without_loading_a_framework():
    about = describe()
    assert about["processor"]
    assert about["cores"] == len(os.sched_getaffinity(0))
    assert isinstance(about["gpus"], list)
    assert platform.system() in about["system"]


def test_versions_are_those_installed_and_nothing_else():
    found = versions()
    assert found["python"] == platform.python_version()
    assert found["torch"] == version("torch")
    assert found["rlforge"] == version("rlforge")
    assert all(found.values())
