"""Output that nobody reads does not end what writes it."""

import os
import subprocess
import sys

import pytest

from rlforge.system.output import lossy

CODE = """
import sys
from rlforge.system.output import lossy
with lossy("stdout", "stderr"):
    for number in range(20_000):
        print("line", number)
        print("line", number, file=sys.stderr)
print("ended", file=open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("to", ["a reader that leaves", "a full disk", "a closed terminal"])
def test_writing_goes_on_when_nobody_reads(tmp_path, monkeypatch, to, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    if to == "a full disk":
        target = os.open("/dev/full", os.O_WRONLY)
    elif to == "a closed terminal":
        other, target = os.openpty()
        os.close(other)
    else:
        other, target = os.pipe()
        os.close(other)
    command = [sys.executable, "-c", CODE, str(tmp_path / "end")]
    done = subprocess.run(command, stdout=target, stderr=target, timeout=60)
    os.close(target)
    assert done.returncode == 0
    assert (tmp_path / "end").read_text() == "ended\n"


def test_what_can_be_written_is_written_in_order_and_streams_come_back():
    code = (
        "import sys; from rlforge.system.output import lossy\n"
        "print('grüße')\n"
        "with lossy('stdout'): print('two')\n"
        "print('three')"
    )
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert done.stdout.decode("latin-1") == "grüße\ntwo\nthree\n"


def test_a_stream_that_is_no_file_stays(capsys):
    before = sys.stdout
    with lossy("stdout", "stderr"):
        assert sys.stdout is before
        print("seen")
    assert capsys.readouterr().out == "seen\n"
