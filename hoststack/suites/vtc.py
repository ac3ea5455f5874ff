# SPDX-License-Identifier: Apache-2.0
"""Suites whose tests are files of varnishtest (vtest): each has clients, servers and a proxy."""

import concurrent.futures

# Of varnishtest: a test that cannot run here is skipped.
RESULTS = {0: "passed", 77: "skipped"}

# As many tests run at the same time. Most wait most of their time.
AT_ONCE = 4


def each(way, files, *program, folder=None, **environment):
    """Runs files of tests, and yields their results. Many have times that a busy machine does not keep, so a test that has
    failed is run again alone."""
    def run(path):
        name = f"{path.parent.name}/{path.name}"
        status, _ = way.run(name, *program, "-t", "60", path, folder=folder, limit=120,
                            environment={"TMPDIR": str(way.folder), **environment})
        return name, RESULTS.get(status, "failed")

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(zip(files, pool.map(run, files)))
    for path, (name, result) in results:
        yield run(path) if result == "failed" else (name, result)


def haproxy(way, sources):
    """All of haproxy's regression tests but those that take long, or need a program that is not Debian's."""
    folder = sources / "haproxy"
    slow = {path for path in folder.glob("reg-tests/**/*.vtc") if "#REGTEST_TYPE=slow" in path.read_text(errors="replace")}
    files = sorted(set(folder.glob("reg-tests/**/*.vtc")) - slow)
    yield from each(way, files, "varnishtest", HAPROXY_PROGRAM="/usr/sbin/haproxy")


# Of Varnish's tests those of connections: basics, bugs of sessions, HTTP/1 and 2, proxies, streams and timeouts.
VARNISH = "abcostu"


def varnish(way, sources):
    folder = sources / "varnish/bin/varnishtest"
    files = sorted(path for path in folder.glob("tests/*.vtc") if path.name[0] in VARNISH)
    # It looks for the programs of the build from here.
    yield from each(way, files, folder / "varnishtest", "-i", folder=folder)
