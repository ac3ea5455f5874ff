# SPDX-License-Identifier: Apache-2.0
"""Counts the rings that processes of this namespace have mapped, until SIGTERM. Those of short connections are missed."""

import os
import signal
import sys
import time

seen = set()


def finish(*_):
    print(len(seen))
    sys.exit()


def rings(process):
    try:
        with open(f"/proc/{process}/maps") as maps:
            return {line.split()[4] for line in maps if "memfd:beeline-ring" in line}
    except OSError:
        return set()  # It has ended.


signal.signal(signal.SIGTERM, finish)
while True:
    for process in filter(str.isdigit, os.listdir("/proc")):
        seen |= rings(process)
    time.sleep(0.1)
