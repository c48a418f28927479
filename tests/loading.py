"""Loads files, each in a process of its own with little time and memory: ``python tests/loading.py FILE ...``.

Prints as JSON what became of each: "loaded", the error, or "killed" where it took more than its share.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path

from streamsvm.files.container import ModelFileError
from streamsvm.stream.checkpoint import load

SECONDS, MORE_BYTES = 20, 2**30


def fate(path):
    try:
        load(path)
    except ModelFileError as error:
        return str(error)
    return "loaded"


def limited(path):
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MORE_BYTES,) * 2)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor; its signal ends the process
        try:
            os.write(writes, fate(path)[:2000].encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said or "killed"


if __name__ == "__main__":
    print(json.dumps({path: limited(path) for path in sys.argv[1:]}))  # noqa: T201
