// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestResolvConf: the file is the pod's. It is read within the pod's root and within bounds, and nothing in it makes
// the agent wait, or read the node's.
func TestResolvConf(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	node := filepath.Join(t.TempDir(), "resolv.conf")
	must(os.WriteFile(node, []byte("nameserver 192.0.2.99\n"), 0o644))
	for _, c := range []struct {
		name    string
		make    func(path string) error
		want    string
		refused string
	}{
		{"a file", func(p string) error {
			return os.WriteFile(p, []byte("# a comment\nsearch x\nnameserver 10.96.0.10\nnameserver fe80::1%eth0\n nameserver\tfd00::a \nnameserver x\nnameserver\n"), 0o644)
		}, "[10.96.0.10 fe80::1 fd00::a]", ""},
		{"an empty file", func(p string) error { return os.WriteFile(p, nil, 0o644) }, "[]", ""},
		{"ten servers", func(p string) error {
			return os.WriteFile(p, []byte(strings.Repeat("nameserver 10.0.0.1\n", 10)), 0o644)
		}, fmt.Sprint(slices.Repeat([]netip.Addr{netip.MustParseAddr("10.0.0.1")}, 8)), ""},
		{"64 KiB", func(p string) error { return os.WriteFile(p, make([]byte, 64<<10), 0o644) }, "[]", ""},
		{"more", func(p string) error { return os.WriteFile(p, make([]byte, 64<<10+1), 0o644) }, "", "more than"},
		{"a link within", func(p string) error {
			return os.Symlink("/run/resolv.conf", p)
		}, "[10.1.1.1]", ""},
		{"a link to the node's", func(p string) error { return os.Symlink(node, p) }, "", "no such file"},
		{"a link up", func(p string) error { return os.Symlink("../../../../../../../.."+node, p) }, "", "no such file"},
		{"a link for the directory", func(p string) error {
			return errors.Join(os.Remove(filepath.Dir(p)), os.Symlink("/run", filepath.Dir(p)))
		}, "[10.1.1.1]", ""},
		{"a link for the directory to the node's", func(p string) error {
			return errors.Join(os.Remove(filepath.Dir(p)), os.Symlink(filepath.Dir(node), filepath.Dir(p)))
		}, "", "no such file"},
		{"a link to itself", func(p string) error { return os.Symlink("resolv.conf", p) }, "", "too many levels"},
		{"a line as long as the file", func(p string) error {
			return os.WriteFile(p, []byte("nameserver "+strings.Repeat("1", 60000)+"\nnameserver 10.0.0.2"), 0o644)
		}, "[10.0.0.2]", ""},
		{"octets of all values", func(p string) error {
			return os.WriteFile(p, []byte("\xff\x00nameserver 10.0.0.1\nnameserver \x00\nnameserver 10.0.0.3\r\n"), 0o644)
		}, "[10.0.0.3]", ""},
		{"a FIFO", func(p string) error { return unix.Mkfifo(p, 0o644) }, "", "not a regular file"},
		{"a directory", func(p string) error { return os.Mkdir(p, 0o755) }, "", "not a regular file"},
		{"a device", func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) }, "", "not a regular file"},
		{"nothing", func(string) error { return nil }, "", "no such file"},
	} {
		root := t.TempDir()
		must(os.MkdirAll(filepath.Join(root, "etc"), 0o755))
		must(os.MkdirAll(filepath.Join(root, "run"), 0o755))
		must(os.WriteFile(filepath.Join(root, "run/resolv.conf"), []byte("nameserver 10.1.1.1"), 0o644))
		must(c.make(filepath.Join(root, "etc/resolv.conf")))
		done := make(chan struct{})
		go func() {
			defer close(done)
			text, err := readResolvConf(root)
			switch {
			case c.refused != "":
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("%s: %v, want an error with %q", c.name, err, c.refused)
				}
			case err != nil:
				t.Errorf("%s: %v", c.name, err)
			default:
				if got := fmt.Sprint(parseNameServers(text)); got != c.want {
					t.Errorf("%s: %s, want %s", c.name, got, c.want)
				}
			}
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: the reader waits", c.name)
		}
	}
}

// withRoot starts a process with a mount namespace of its own, in which a script of Python has run. It returns the
// process's root, and a function that ends the process.
func withRoot(t *testing.T, script string) (root string, end func()) {
	t.Helper()
	cmd := exec.Command("/usr/bin/python3", "-c", "import os, sys\n"+script+"\nprint('ready', flush=True)\nos.read(0, 1)")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end = func() { in.Close(); cmd.Process.Kill(); cmd.Wait() }
	t.Cleanup(end)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q (%v): %s", line, err, &errors)
	}
	return "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/root", end
}

// mountEtc mounts a file system at /etc of the process alone.
const mountEtc = `
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, target, kind, flags, data):
	if libc.mount(source, target, kind, flags, data):
		sys.exit(os.strerror(ctypes.get_errno()))
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
`

// TestResolvConfOfProcfs: a regular file of procfs may block who reads it.
func TestResolvConfOfProcfs(t *testing.T) {
	for _, link := range []string{"/proc/kmsg", "/proc/self/status"} {
		root, _ := withRoot(t, mountEtc+"mount(b'x', b'/etc', b'tmpfs', 0, None)\nos.symlink('"+link+"', '/etc/resolv.conf')")
		if text, err := readResolvConf(root); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %q (%v)", link, text, err)
		}
	}
}

// TestResolvConfThatNeverComes: a file system that does not answer does not keep the agent from its other work.
func TestResolvConfThatNeverComes(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("%v: such a file system is made by FUSE", err)
	}
	root, end := withRoot(t, mountEtc+"fd = os.open('/dev/fuse', os.O_RDWR)\nmount(b'x', b'/etc', b'fuse', 0, b'fd=%d,rootmode=40000,user_id=0,group_id=0' % fd)")
	ended := make(chan error, 1)
	read := func() ([]netip.Addr, error) {
		_, err := readResolvConf(root)
		ended <- err
		return nil, err
	}
	var f facts
	for i := range 100 {
		begin := time.Now()
		if err := f.readServers(nil, read); err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Fatal(err)
		}
		if took := time.Since(begin); i > 0 && took > readTime/2 {
			t.Fatalf("look %d took %v", i, took)
		}
	}
	end()
	if err := <-ended; err == nil {
		t.Fatal("a file is read of a file system that never answers")
	}
	if n := len(ended); n != 0 {
		t.Errorf("%d other readings have begun", n)
	}
	for f.reading != nil { // it has ended, or is about to
		_ = f.readServers(nil, read)
	}
	want := []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	if err := f.readServers([]uint64{7}, func() ([]netip.Addr, error) { return want, nil }); err != nil || !slices.Equal(f.servers, want) || !slices.Equal(f.listeners, []uint64{7}) {
		t.Errorf("the next file: %v, %v (%v)", f.servers, f.listeners, err)
	}
}

// TestReadingsAreBounded: each pod that never answers costs a thread, so there are few.
func TestReadingsAreBounded(t *testing.T) {
	release := make(chan struct{})
	blocks := func() ([]netip.Addr, error) { <-release; return nil, nil }
	var all []*reading
	for {
		r, err := startReading(nil, blocks)
		if err != nil {
			break
		}
		if all = append(all, r); len(all) > mostReads {
			t.Fatalf("%d readings at once", len(all))
		}
	}
	close(release)
	for _, r := range all {
		<-r.done
	}
	for end := time.Now().Add(30 * time.Second); len(reads) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d readings have not ended", len(reads))
		}
	}
}
