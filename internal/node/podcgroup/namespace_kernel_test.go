// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/test/needs"
)

// sleeping starts a process that sleeps, in new namespaces.
func sleeping(t *testing.T, flags uintptr) (pid string) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	if flags&syscall.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 1337, HostID: os.Getuid(), Size: 1}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return strconv.Itoa(cmd.Process.Pid)
}

// TestNamespaceOfPod: what an application makes is not taken for the pod's network namespace, whatever the order in
// which processes are listed.
func TestNamespaceOfPod(t *testing.T) {
	needs.Root(t)
	own := strconv.Itoa(os.Getpid())
	pod := sleeping(t, syscall.CLONE_NEWNET)
	younger := sleeping(t, syscall.CLONE_NEWNET)
	mapped := sleeping(t, syscall.CLONE_NEWNET|syscall.CLONE_NEWUSER)
	for _, c := range []struct {
		name string
		pids []string
		want string // "": none, and an error if there is a process of the node
	}{
		{"none", nil, ""},
		{"an ended one", []string{"4194305"}, ""},
		{"the node's", []string{own}, ""},
		{"one", []string{pod}, pod},
		{"one beside a helper", []string{own, pod}, pod},
		{"an application made another one", []string{younger, pod}, pod},
		{"listed later", []string{pod, younger}, pod},
		{"an application has a user namespace", []string{mapped, younger}, younger},
		{"listed later, and older", []string{younger, own, mapped, pod}, pod},
		{"hostUsers: false", []string{mapped}, mapped},
	} {
		directory := t.TempDir()
		if err := os.WriteFile(filepath.Join(directory, "cgroup.procs"), []byte(strings.Join(c.pids, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
		n, err := Namespace(directory)
		if c.want == "" {
			if n != nil || (err != nil) != slices.Contains(c.pids, own) {
				t.Errorf("%s: %v (%v), want none", c.name, n, err)
			}
			continue
		}
		want, e := netns.Open("/proc/" + c.want + "/ns/net")
		if e != nil {
			t.Fatal(e)
		}
		if err != nil || n == nil || n.Inode != want.Inode {
			t.Errorf("%s: %+v (%v), want that of process %s", c.name, n, err, c.want)
		}
		want.Close()
		if n != nil {
			n.Close()
		}
	}
}
