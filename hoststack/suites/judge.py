# SPDX-License-Identifier: Apache-2.0
"""Compares the results of a suite on the kernel and on rings: judge.py SUITE DIFFERENCES KERNEL RINGS CONNECTIONS.

Prints what differs, and totals. CONNECTIONS is how many were seen on rings.
"""

import sys

suite, differences, kernel_path, rings_path, connections = sys.argv[1:]


def lines(path):
    with open(path, errors="replace") as file:
        return [line.rstrip("\n").split("\t") for line in file if "\t" in line]


reasons = {test: reason for of, test, reason in lines(differences) if of == suite}
kernel = dict(lines(kernel_path))
rings = dict(lines(rings_path))
passed = skipped = failed = 0
for test in sorted(kernel.keys() | rings.keys()):
    before, after = kernel.get(test, "not run"), rings.get(test, "not run")
    if before == after and before.startswith("passed"):
        passed += 1
        continue
    wrong = before != after and test not in reasons
    failed += wrong
    skipped += not wrong
    if wrong:
        print(f"FAIL {test}: {before} on the kernel, {after} on rings")
    elif before != after:
        print(f"DIFFERS {test}: {before} on the kernel, {after} on rings: {reasons[test]}")
    elif before != "skipped":
        print(f"SKIP {test}: {before} on the kernel, too")
for fault in ["no test passed"] * (not passed) + ["no connection was on rings"] * (connections == "0"):
    print(f"FAIL {suite}: {fault}")
    failed += 1
print(f"{suite}, {connections} connections seen on rings: {passed} passed, {skipped} skipped, {failed} failed")
sys.exit(failed > 0)
