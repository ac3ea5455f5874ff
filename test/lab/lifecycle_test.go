// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

func TestDownLeavesNothing(t *testing.T) {
	for _, layout := range []CgroupLayout{LayoutSystemd, LayoutCgroupfs} {
		t.Run(string(layout), func(t *testing.T) {
			l, err := Up(Config{Name: newName(t), CgroupLayout: layout, Temporary: true})
			if err != nil {
				t.Fatal(err)
			}
			left := canary(t, l)
			useEverything(t, l)
			if found := leftovers(t, l.Name); len(found) < 30 || left() != len(l.Hosts()) {
				t.Fatalf("the test finds only %d traces and %d devices of a lab that is up", len(found), left())
			}
			if err := l.Down(); err != nil {
				t.Fatal(err)
			}
			wantNothingLeft(t, l.Name)
			eventually(t, "the kernel destroys the lab's namespaces and devices", func() bool { return left() == 0 })
		})
	}
}

// A lab is invisible in the machine's own network: not even for a moment is one of its devices there.
func TestUpDoesNotTouchTheMachinesNetwork(t *testing.T) {
	name := newName(t)
	updates, done := make(chan netlink.LinkUpdate, 1000), make(chan struct{})
	defer close(done)
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		t.Fatal(err)
	}
	before, err := netdev.Dump(netlink.LinkList)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Up(Config{Name: name, Temporary: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	known := map[int]bool{}
	for _, link := range before {
		known[link.Attrs().Index] = true
	}
	for len(updates) > 0 {
		attrs := (<-updates).Attrs()
		if !known[attrs.Index] && (attrs.Name == device0 || l.Host(attrs.Name) != nil) {
			t.Errorf("device %s appeared in the machine's own namespace", attrs.Name)
		}
	}
}

func TestUpTwice(t *testing.T) {
	name := newName(t)
	first, err := Up(Config{Name: name, Temporary: true})
	if err != nil {
		t.Fatal(err)
	}
	cookie, err := netnsCookie(t, first.Host("a1"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := Up(Config{Name: name, Temporary: true})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := netnsCookie(t, second.Host("a1")); err != nil || again != cookie || first.Reused || !second.Reused {
		t.Errorf("the second Up created the lab again (namespace %d, before %d, %v), reused %v then %v", again, cookie, err, first.Reused, second.Reused)
	}
	if _, err := Up(Config{Name: name, CgroupLayout: LayoutCgroupfs}); err == nil {
		t.Error("Up with another cgroup layout: no error")
	}
	if _, err := Up(Config{Name: name, CgroupLayout: "docker"}); err == nil {
		t.Error("Up with an unknown cgroup layout: no error")
	}
}

// Up repairs a damaged lab.
func TestUpMakesADamagedLabAnew(t *testing.T) {
	for what, damage := range map[string]func(*Lab) error{
		"namespace":       func(l *Lab) error { return removeNetNS(l.Host("b2").NetNS) },
		"cgroup":          func(l *Lab) error { return os.Remove(l.Host("client").Cgroup) },
		"BPF file system": func(l *Lab) error { return unix.Unmount(l.Host("node-b").BPFFS, 0) },
		"state":           func(l *Lab) error { return os.Truncate(filepath.Join(stateDir(l.Name), stateFile), 10) },
		"reboot": func(l *Lab) error {
			s, err := readState(l.Name)
			s.BootID = "another"
			return errors.Join(err, s.write(l.Name))
		},
	} {
		t.Run(what, func(t *testing.T) {
			l, err := Up(Config{Name: newName(t), Temporary: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(l); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(l.Name); !errors.Is(err, ErrIncomplete) {
				t.Errorf("Open: %v, want ErrIncomplete", err)
			}
			l, err = Up(Config{Name: l.Name, Temporary: true})
			if err != nil || l.Reused {
				t.Fatalf("Up: reused=%v, %v, want a new one", l != nil && l.Reused, err)
			}
			wantWorking(t, l)
			if err := l.Down(); err != nil {
				t.Error(err)
			}
			wantNothingLeft(t, l.Name)
		})
	}
}

func wantWorking(t *testing.T, l *Lab) {
	t.Helper()
	if err := l.StartServers(); err != nil {
		t.Fatal(err)
	}
	for _, addr := range l.Host("b3").addrs() {
		if answer, err := l.Host("a1").Request(withTimeout(t, patience), "tcp", port(addr, PortTCP), "x"); err != nil || answer.Pod != "b3" {
			t.Errorf("a1 to b3: answer %v (%v)", answer, err)
		}
	}
}

func TestDownOfNothing(t *testing.T) {
	if err := Down(newName(t)); err != nil {
		t.Error(err)
	}
	if _, err := Open(newName(t)); !errors.Is(err, ErrNotFound) {
		t.Errorf("Open: %v, want ErrNotFound", err)
	}
}

// Down finds everything by the lab's name, even without its files.
func TestDownWithoutState(t *testing.T) {
	l, err := Up(Config{Name: newName(t), Temporary: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range l.Nodes() {
		if err := unix.Unmount(node.BPFFS, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(stateDir(l.Name)); err != nil {
		t.Fatal(err)
	}
	if err := Down(l.Name); err != nil {
		t.Error(err)
	}
	wantNothingLeft(t, l.Name)
}

// Two labs have the same addresses and do not know of each other.
func TestTwoLabsAtOnce(t *testing.T) {
	one, two := New(t), New(t)
	if err := one.Host("b1").StartServer(ServerOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, addr := range one.Host("b1").addrs() {
		if _, err := one.Host("a1").Request(withTimeout(t, patience), "tcp", port(addr, PortTCP), "x"); err != nil {
			t.Error(err)
		}
		_, err := two.Host("a1").Request(withTimeout(t, patience), "tcp", port(addr, PortTCP), "x")
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the other lab reached the server: %v, want ECONNREFUSED", err)
		}
	}
	if err := one.Down(); err != nil {
		t.Fatal(err)
	}
	wantWorking(t, two)
	labs, err := List()
	if err != nil || !slices.ContainsFunc(labs, func(s Status) bool { return s.Name == two.Name && s.Err == nil }) ||
		slices.ContainsFunc(labs, func(s Status) bool { return s.Name == one.Name }) {
		t.Errorf("List: %v (%v), want %s and not %s", labs, err, two.Name, one.Name)
	}
}

// Concurrent Ups and Downs of one name take turns.
func TestUpAndDownOfOneNameAtOnce(t *testing.T) {
	name := newName(t)
	results := make(chan error)
	for i := range 8 {
		go func() {
			if i%2 == 0 {
				_, err := Up(Config{Name: name, Temporary: true})
				results <- err
			} else {
				results <- Down(name)
			}
		}()
	}
	for range 8 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if _, err := Open(name); err != nil && !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := Down(name); err != nil {
		t.Error(err)
	}
	wantNothingLeft(t, name)
}

// On a machine that uses only cgroup v1 a lab mounts cgroup2 itself.
func TestOwnCgroup2Mount(t *testing.T) {
	l, err := Up(Config{Name: newName(t), ownCgroup2: true, Temporary: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(stateDir(l.Name), "cgroup2"); !strings.HasPrefix(l.CgroupRoot, want) {
		t.Errorf("cgroups at %s, want below %s", l.CgroupRoot, want)
	}
	if _, cgroup := placeOf(t, l.Host("a1")); !strings.HasSuffix(l.Host("a1").Cgroup, cgroup) {
		t.Errorf("command in cgroup %s, want %s", cgroup, l.Host("a1").Cgroup)
	}
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, l.Name)
}

// An Up that fails in the middle removes what it created.
func TestUpThatFailsLeavesNothing(t *testing.T) {
	name := newName(t)
	// The client's namespace has a name that is a directory.
	obstacle := filepath.Join(netnsPath(name, "client"), "obstacle")
	if err := os.MkdirAll(obstacle, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Up(Config{Name: name, Temporary: true})
	if removeErr := os.RemoveAll(filepath.Dir(obstacle)); removeErr != nil {
		t.Fatal(removeErr)
	}
	if err == nil || !strings.Contains(err.Error(), netnsPath(name, "client")) {
		t.Fatalf("Up: %v, want an error that names the obstacle", err)
	}
	if err := Down(name); err != nil {
		t.Error(err)
	}
	wantNothingLeft(t, name)
}

func TestProcessIsNamedForGood(t *testing.T) {
	p, err := processOf(os.Getpid())
	if err != nil || !p.alive() {
		t.Errorf("this process: %v, alive=%v", err, p.alive())
	}
	p.Start += "0" // another process with the same pid
	if p.alive() {
		t.Error("a process with another start time is taken for the same")
	}
	if _, err := processOf(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v, want fs.ErrNotExist", err)
	}
	if (process{}).alive() {
		t.Error("no process is alive")
	}
}
