// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDescriptorsOf: sockets are found by their inodes, and a process with very many descriptors does not keep the
// agent busy.
func TestDescriptorsOf(t *testing.T) {
	own := strconv.Itoa(os.Getpid())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	inode := uint32(st.Ino)
	found := descriptorsOf([]string{"4194305", own}, inode, 1)
	if len(found) != 2 || found[0].pid != own || found[0].inode != inode || found[0].fd == found[1].fd {
		t.Fatalf("found %v, want two descriptors of this process", found)
	}
	opened := false
	err = found[0].open(func(fd int) error {
		var same unix.Stat_t
		opened = unix.Fstat(fd, &same) == nil && same.Ino == st.Ino
		return nil
	})
	if err != nil || !opened {
		t.Errorf("the descriptor is not opened: %v", err)
	}
	crowd := crowded(t)
	begin := time.Now()
	many := slices.Repeat([]string{crowd}, mostDescriptors/crowdSize+1)
	if found := descriptorsOf(append(many, own), inode); len(found) != 0 {
		t.Errorf("found %v behind %d descriptors", found, mostDescriptors)
	}
	t.Logf("%d descriptors took %v", mostDescriptors, time.Since(begin))
	if found := descriptorsOf([]string{own, crowd}, inode); len(found) != 2 {
		t.Errorf("found %v before many descriptors, want two", found)
	}
}

// crowdSize is the number of descriptors of a process that has many.
const crowdSize = 3000

// crowded starts such a process.
func crowded(t *testing.T) (pid string) {
	t.Helper()
	const script = `
import os, resource
n = int(os.environ["N"])
resource.setrlimit(resource.RLIMIT_NOFILE, (n + 100, n + 100))
for _ in range(n): os.dup(0)
print("ready", flush=True)
os.read(0, 1)
`
	cmd := exec.Command("/usr/bin/python3", "-c", script)
	cmd.Env = []string{"N=" + strconv.Itoa(crowdSize)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	answer := make([]byte, 6)
	if n, err := out.Read(answer); !strings.HasPrefix(string(answer[:n]), "ready") {
		t.Fatalf("%q (%v)", answer[:n], err)
	}
	return strconv.Itoa(cmd.Process.Pid)
}

// TestCredentialsOf: the ids are those that bpf_get_current_uid_gid returns.
func TestCredentialsOf(t *testing.T) {
	root, _ := withRoot(t, "os.setresgid(11, 12, 13)\nos.setresuid(21, 22, 23)")
	pid := strings.Split(root, "/")[2]
	if user, group, name := credentialsOf(pid); user != 21 || group != 11 || !strings.HasPrefix(name, "python3") {
		t.Errorf("%q of user %d and group %d", name, user, group)
	}
	if _, _, name := credentialsOf("4194305"); name != "" {
		t.Errorf("a process that is not there has the name %q", name)
	}
}
