# SPDX-License-Identifier: Apache-2.0
"""Prints the results of a module of CPython's tests, a line for each: junit.py MODULE FILE."""

import sys
import xml.etree.ElementTree as ElementTree

module, path = sys.argv[1:]
try:
    cases = list(ElementTree.parse(path).iter("testcase"))
except (OSError, ElementTree.ParseError):
    cases = []
for case in cases:
    wrong = case.find("failure") is not None or case.find("error") is not None
    skipped = case.find("skipped") is not None
    print(case.get("name"), "failed" if wrong else "skipped" if skipped else "passed", sep="\t")
print(module, "passed" if cases else "failed", sep="\t")
