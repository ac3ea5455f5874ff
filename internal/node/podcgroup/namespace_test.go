// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"beeline.io/beeline/internal/node/podcgroup/podcgrouptest"
)

// Which namespace of a pod's processes is the pod's.
func TestNamespaceOfAPod(t *testing.T) {
	// Processes: 1-9 are the pod's own, in namespace 40; 10-19 in one that a program created; 20-29 in the
	// host's. A later process has a larger number.
	m := newMachine()
	for i := range 9 {
		m.start(1+i, 40, uint64(1+i))
		m.start(10+i, 41, uint64(10+i))
		m.start(20+i, hostNS, uint64(20+i))
	}
	m.start(100, 40, 0) // the oldest, with a large number
	m.start(101, 42, 0)
	m.start(31, 43, 31)
	m.moved[31] = 44
	m.start(60, 45, 0) // older than all of the pod's, in a user namespace of a program
	m.depths[45] = 1
	for name, test := range map[string]struct {
		cgroups []string
		want    uint64
		err     error
	}{
		"one process":                      {[]string{"c: 1"}, 40, nil},
		"in the pod's own cgroup":          {[]string{": 1"}, 40, nil},
		"none yet":                         {[]string{"c:"}, 0, nil},
		"on its way in":                    {[]string{"c: 20"}, 0, ErrOnNode},
		"ended meanwhile":                  {[]string{"c: 50"}, 0, nil},
		"moved meanwhile":                  {[]string{"c: 31"}, 0, nil},
		"helpers on the host's network":    {[]string{"conmon: 20 21 22", "c: 1"}, 40, nil},
		"a browser's many renderers":       {[]string{"pause: 1", "c: 2 10 11 12 13 14 15 16 17 18"}, 40, nil},
		"containers in a container":        {[]string{"pause: 1", "c: 2", "c/inner/a: 10", "c/inner/b: 11"}, 40, nil},
		"init in a cgroup of its own":      {[]string{"c/init.scope: 1", "c/system.slice/x.service: 10 11"}, 40, nil},
		"a container that moved away":      {[]string{"pause: 1", "c: 2", "moved: 10"}, 40, nil},
		"as many votes: the older":         {[]string{"moved: 10", "pause: 1"}, 40, nil},
		"older by start and not by number": {[]string{"a: 100", "b: 10"}, 40, nil},
		"as old: by number":                {[]string{"a: 101", "b: 100"}, 40, nil},
		"in a user namespace":              {[]string{"pause: 1", "c: 60", "d: 60"}, 40, nil},
		"in one, of one container":         {[]string{"c: 60 2"}, 40, nil},
		"hostUsers: false":                 {[]string{"c: 60"}, 45, nil},
		"of another PID namespace":         {[]string{"c: 0 0"}, 0, errHidden},
		"rubbish":                          {[]string{"c: x"}, 0, errAny},
		"rubbish in one container":         {[]string{"c: x", "d: 1"}, 40, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			podcgrouptest.Tree(t, dir, test.cgroups...)
			got, err := m.cookieOf(dir)
			if test.want != 0 {
				test.want += 1000
			}
			if got != test.want || !errors.Is(err, test.err) && !(test.err == errAny && err != nil) {
				t.Errorf("cookie %d (%v), want %d (%v)", got, err, test.want, test.err)
			}
		})
	}
	if got, err := m.cookieOf(filepath.Join(t.TempDir(), "gone")); got != 0 || err != nil {
		t.Errorf("of a removed cgroup: %d, %v", got, err)
	}
}

var errAny = errors.New("any error")

// A scan of a pod with very many processes or cgroups has a bounded cost.
func TestLookIsBounded(t *testing.T) {
	m := newMachine()
	var pids []string
	for pid := 1; pid <= 20000; pid++ {
		m.start(pid, 40, uint64(pid))
		pids = append(pids, strconv.Itoa(pid))
	}
	dir := t.TempDir()
	podcgrouptest.Tree(t, dir, "c: "+strings.Join(pids, " "))
	for i := range 3 * maxDirectories {
		podcgrouptest.Tree(t, dir, "c/"+strconv.Itoa(i)+": 1")
	}
	if got, err := m.cookieOf(dir); got != 1040 || err != nil || m.asked > 2*maxProcesses {
		t.Errorf("cookie %d (%v) after %d processes, want 1040 after at most %d", got, err, m.asked, 2*maxProcesses)
	}
}

// procfs returns the state of this test process.
func TestKernel(t *testing.T) {
	inode, err := procfs{}.netns(os.Getpid())
	if err != nil || inode == 0 {
		t.Errorf("inode %d, %v", inode, err)
	}
	if started, err := (procfs{}).started(os.Getpid()); err != nil || started == 0 {
		t.Errorf("started at %d, %v", started, err)
	}
	host, err := hostNamespaces()
	if err != nil || len(host) == 0 || host[0] != inode {
		t.Errorf("the host's namespaces are %v (%v), want that of this process, %d, first", host, err, inode)
	}
	for _, pid := range []int{-1, 1 << 30} {
		_, err := procfs{}.netns(pid)
		_, ofStart := procfs{}.started(pid)
		_, ofOpen := procfs{}.open(pid)
		for _, err := range []error{err, ofStart, ofOpen} {
			if ignoreGone(err) != nil || err == nil {
				t.Errorf("process %d: %v, want an error that says that it has exited", pid, err)
			}
		}
	}
}
