// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// forged is a page that this process maps, as any program can.
type forged struct {
	size        int
	seals       int
	flags, mode int // of mmap(2)
	offset      int64
	edit        func(page []byte)
	file        string // instead of a memfd
	lease       bool   // the process has a lease of the file
}

func genuine() forged {
	return forged{size: pageBytes, seals: unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL, flags: unix.MAP_SHARED,
		mode: unix.PROT_READ | unix.PROT_WRITE, edit: func([]byte) {}}
}

// put writes words at an offset.
func put(page []byte, at int, words ...uint32) {
	for i, word := range words {
		binary.NativeEndian.PutUint32(page[at+4*i:], word)
	}
}

func blank() []byte {
	page := make([]byte, pageBytes)
	put(page, 0, pageMagic, pageVersion, pageBytes, entryBytes, entryCount)
	return page
}

// look maps the page, looks at this process, and returns the page's content afterwards.
func (f forged) look(t *testing.T, o Options) (Program, []byte) {
	t.Helper()
	content := append(blank(), make([]byte, max(0, f.size-pageBytes))...)[:f.size]
	f.edit(content)
	fd, err := unix.MemfdCreate("beeline-hoststack", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if f.file != "" {
		fd, err = unix.Open(f.file, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	}
	must(t, err)
	defer unix.Close(fd)
	_, err = unix.Pwrite(fd, content, 0)
	must(t, err)
	if f.file == "" && f.seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, f.seals)
		must(t, err)
	}
	mapped, err := unix.Mmap(fd, f.offset, f.size-int(f.offset), f.mode, f.flags)
	must(t, err)
	defer unix.Munmap(mapped)
	if f.lease {
		again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(again)
		_, err = unix.FcntlInt(uintptr(again), unix.F_SETLEASE, unix.F_WRLCK)
		must(t, err)
	}
	r, err := Look([]Process{{PID: os.Getpid()}}, o)
	must(t, err)
	if len(r.Programs) != 1 {
		t.Fatalf("%d programs, want this process", len(r.Programs))
	}
	_, err = unix.Pread(fd, content, 0)
	must(t, err)
	return r.Programs[0], content
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestForgedPage: what is not a page is not read, and above all not written.
func TestForgedPage(t *testing.T) {
	off := Options{Switch: func(_ bool, set func(bool) error) error { return set(true) }}
	for name, change := range map[string]func(*forged){
		"wrong magic":             func(f *forged) { f.edit = func(p []byte) { put(p, 0, 0x12345678) } },
		"another version":         func(f *forged) { f.edit = func(p []byte) { put(p, 4, 2) } },
		"another number of rows":  func(f *forged) { f.edit = func(p []byte) { put(p, 16, 1<<31) } },
		"smaller":                 func(f *forged) { f.size = 4096 },
		"larger":                  func(f *forged) { f.size += 4096 },
		"from its second page on": func(f *forged) { f.size, f.offset = pageBytes+4096, 4096 },
		"no seals":                func(f *forged) { f.seals = 0 },
		"may shrink":              func(f *forged) { f.seals = unix.F_SEAL_GROW },
		"private":                 func(f *forged) { f.flags = unix.MAP_PRIVATE },
		"mapped for reading only": func(f *forged) { f.mode = unix.PROT_READ },
		"a lease":                 func(f *forged) { f.lease = true },
		"a file":                  func(f *forged) { f.file = namedAsPage(t) },
	} {
		t.Run(name, func(t *testing.T) {
			f := genuine()
			change(&f)
			p, after := f.look(t, off)
			if p.State != Unread || p.Why == "" || p.Counters != nil || p.Sessions != nil {
				t.Errorf("%+v, want it to be refused with a reason", p)
			}
			if f.file != "" && !strings.Contains(p.Why, "a mapping of another file") {
				t.Errorf("refused as %q: its file system was asked", p.Why)
			}
			if binary.NativeEndian.Uint32(after[switchAt:]) != 0 {
				t.Error("its switch was written")
			}
		})
	}
	p, after := genuine().look(t, off)
	if p.State != Off || binary.NativeEndian.Uint32(after[switchAt:]) != 1 {
		t.Errorf("a genuine page: %+v, want it to be switched off", p)
	}
	put(after, switchAt, 0)
	if !bytes.Equal(after, blank()) {
		t.Error("more than the switch was written")
	}
}

// namedAsPage returns a file at the root of a file system that is mounted nowhere, so that /proc/PID/maps has it by the
// name of a page.
func namedAsPage(t *testing.T) string {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	must(t, err)
	defer unix.Close(fs)
	must(t, unix.FsconfigCreate(fs))
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(mount) })
	return fmt.Sprintf("/proc/self/fd/%d/%s", mount, strings.TrimPrefix(pageName, "/"))
}

// TestHostileEntries: entries that cannot be are left out, others are as they are written.
func TestHostileEntries(t *testing.T) {
	own := uint32(os.Getpid())
	row := func(p []byte, i int, process uint32, role, sends, receives byte) []byte {
		e := p[headBytes+i*entryBytes:][:entryBytes]
		put(e, 0, process)
		e[4], e[5], e[6] = role, sends, receives
		binary.NativeEndian.PutUint16(e[8:], 80)
		binary.NativeEndian.PutUint16(e[10:], 65535)
		copy(e[16:], netip.MustParseAddr("fd00::1").AsSlice())
		copy(e[32:], append(bytes.Repeat([]byte{0}, 10), 0xff, 0xff, 127, 0, 0, 1))
		return e
	}
	f := genuine()
	f.edit = func(p []byte) {
		row(p, 0, own, 1, 1, 2)
		row(p, 1, own, 2, 0, 0)     // no such role
		row(p, 2, own, 0, 3, 0)     // no such phase
		row(p, 3, own, 0, 0, 255)   // nor this
		row(p, 4, own+1, 0, 0, 0)   // another process
		row(p, 5, 1<<32-1, 0, 0, 0) // being written
		row(p, entryCount-1, own, 0, 0, 0)
		for at := countersAt; at < headBytes; at += 4 {
			put(p, at, 1<<32-1)
		}
	}
	p, _ := f.look(t, Options{})
	want := Session{os.Getpid(), "connector", netip.MustParseAddrPort("[fd00::1]:80"), netip.MustParseAddrPort("127.0.0.1:65535"), "rings", "kernel-again"}
	if len(p.Sessions) != 2 || p.Sessions[0] != want || p.Sessions[1].Role != "acceptor" {
		t.Errorf("%+v, want two", p.Sessions)
	}
	var tt totals
	tt.seen, tt.late = map[identity]*seenPage{}, true
	sums := Counters{Refused: map[string]uint64{}}
	p.page = &page{identity: identity{1, 1}}
	tt.add(&Report{Programs: []Program{p}}, &sums)
	if sums.Attached != 0 || sums.Refused["limit"] != 0 {
		t.Errorf("impossible counters were added: %+v", sums)
	}
}

// TestTotals: a page counts once, from the first look on; a page that goes back is not added and not subtracted.
func TestTotals(t *testing.T) {
	tt := totals{seen: map[identity]*seenPage{}}
	sums := Counters{Refused: map[string]uint64{}}
	for step, c := range []struct {
		inode      uint64
		attached   uint64
		sum, state int
	}{
		{1, 100, 0, 0}, {1, 103, 3, 0}, {2, 5, 8, 0}, {1, 104, 9, 0}, {2, 4, 9, 1}, {2, 6, 11, 0}, {1, 1 << 40, 11, 1},
	} {
		p := Program{State: On, Counters: &Counters{Attached: c.attached, Refused: map[string]uint64{"kept": c.attached}}, page: &page{identity: identity{0, c.inode}}}
		r := &Report{Programs: []Program{p}}
		tt.add(r, &sums)
		if sums.Attached != uint64(c.sum) || sums.Refused["kept"] != uint64(c.sum) || (r.Programs[0].State == Unread) != (c.state == 1) {
			t.Errorf("step %d: %d and %s, want %d", step, sums.Attached, r.Programs[0].State, c.sum)
		}
	}
}

// TestMappings: only what the kernel writes counts, not a path that looks like it.
func TestMappings(t *testing.T) {
	for line, want := range map[string][3]bool{ // library, page, io_uring
		"7f0000000000-7f0000045000 rw-s 00000000 00:01 123                        /memfd:beeline-hoststack (deleted)": {false, true, false},
		"7f0000000000-7f0000045000 rw-s 00000000 08:01 123                        /tmp/memfd:beeline-hoststack":       {},
		"7f0000000000-7f0000045000 rw-s zz 00:01 123                              /memfd:beeline-hoststack":           {},
		"/memfd:beeline-hoststack": {},
		"7f00-7f10 r-xp 00000000 08:01 99   /usr/lib/libbeeline_hoststack.so": {true, false, false},
		"7f00-7f10 rw-s 00000000 00:0e 1   anon_inode:[io_uring]":             {false, false, true},
		"7f00-7f10 rw-p 00000000 00:00 0":                                     {},
	} {
		m, err := scanMappings(strings.NewReader(line + "\n"))
		if got := [3]bool{m.library, len(m.pages) > 0, m.ioUring}; got != want || err != nil {
			t.Errorf("%s: %v (%v), want %v", line, got, err, want)
		}
	}
}
