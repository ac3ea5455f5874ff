// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// leftovers lists everything on the machine with the lab's name: files, mounts, cgroups and processes in them.
func leftovers(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{
		filepath.Join(stateRoot, name), filepath.Join(netnsDir, name+"-*"),
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, paths...)
	}
	found = append(found, linesWith(name, "/proc/self/mountinfo")...)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// An ended process belongs to its parent, not to the lab; an orphan belongs to the machine's
		// init.
		if _, err := processOf(pid); err == nil {
			found = append(found, linesWith(name, fmt.Sprintf("/proc/%d/cgroup", pid))...)
		}
	}
	mount, err := findCgroup2()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(labCgroup(mount, name)); mount != "" && err == nil {
		found = append(found, labCgroup(mount, name))
	}
	return found
}

// linesWith returns the lines of a file that contain text, none if there is no file.
func linesWith(text, path string) []string {
	var found []string
	data, _ := os.ReadFile(path) // processes come and go
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, text) {
			found = append(found, path+": "+line)
		}
	}
	return found
}

func wantNothingLeft(t *testing.T, name string) {
	t.Helper()
	if left := leftovers(t, name); left != nil {
		t.Errorf("lab %s left behind:\n%s", name, strings.Join(left, "\n"))
	}
}

// canary gives every namespace of the lab a device whose other end is in a namespace of the test's. The kernel
// removes it only when it really destroys the lab's namespace, which no name or process shows.
func canary(t *testing.T, l *Lab) (left func() int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "canary")
	if err := createNetNS(path, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeNetNS(path); err != nil {
			t.Error(err)
		}
	})
	nl, err := netlinkAt(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nl.Close)
	for i, h := range l.Hosts() {
		ns, err := os.Open(h.NetNS)
		if err != nil {
			t.Fatal(err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Index = h.Name, 100+i
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "canary", PeerNamespace: netlink.NsFd(int(ns.Fd()))}
		err = nl.LinkAdd(veth)
		ns.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return func() int {
		links, err := netdev.Dump(nl.LinkList)
		if err != nil {
			t.Fatal(err)
		}
		return len(links) - 1 // lo
	}
}

// useEverything runs everything a lab can: servers, helpers, commands, sockets, and a mount and files where
// agents put theirs.
func useEverything(t *testing.T, l *Lab) {
	t.Helper()
	if err := l.StartServers(); err != nil {
		t.Fatal(err)
	}
	for _, h := range l.Hosts() {
		conn, err := h.Dial(withTimeout(t, patience), "tcp", port(l.Host("b1").Addr4, PortTCP))
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		cmd := h.Command(t.Context(), "sleep", "600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go cmd.Wait()
	}
	for _, node := range l.Nodes() {
		if err := os.MkdirAll(filepath.Join(node.BPFFS, "beeline", "maps"), 0o755); err != nil {
			t.Fatal(err)
		}
		mount := filepath.Join(node.RunDir, "mount")
		if err := os.Mkdir(mount, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", mount, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(node.CgroupRoot, "own"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
