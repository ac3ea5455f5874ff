// SPDX-License-Identifier: Apache-2.0

// Package hoststack looks at programs with the host stack's library (hoststack/), and switches it off and on.
//
// The library writes what it does into a page of shared memory. The program may write anything there, and name any file
// as the page is named, so nothing that is read is trusted: docs/develop/hoststack.md.
package hoststack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The page, as hoststack/preload/src/telemetry/page.rs lays it out. Byte order is the machine's.
const (
	pageName    = "/memfd:beeline-hoststack"
	pageMagic   = 0x62657067
	pageVersion = 1
	headBytes   = 4096
	entryBytes  = 64
	entryCount  = 4096
	pageBytes   = headBytes + entryCount*entryBytes
	switchAt    = 20
	countersAt  = 64
)

// refusals are the reasons for which connections and offers were refused, in the order of the page's counters.
var refusals = [...]string{"elsewhere", "no-answer", "kept", "limit", "memory", "offer"}

// Counters are what the library has counted in the processes that share a page.
type Counters struct {
	// Attached are connections that were put on rings, each end counted.
	Attached uint64 `json:"attached"`
	// Unlisted are those of Attached for which the list had no room.
	Unlisted uint64 `json:"unlisted"`
	// Received and Sent are octets by rings.
	Received uint64 `json:"receivedBytes"`
	Sent     uint64 `json:"sentBytes"`
	// Violations are connections that were reset because the other end wrote what cannot be.
	Violations uint64 `json:"violations"`
	// ReturnedToKernel are connections that went back to the kernel when rings were switched off.
	ReturnedToKernel uint64 `json:"returnedToKernel"`
	// Refused are connections and offers that were refused, by reason.
	Refused map[string]uint64 `json:"refused"`
}

// A Session is a connection on rings, or one that was.
type Session struct {
	PID int `json:"pid"`
	// Role is acceptor or connector.
	Role   string         `json:"role"`
	Server netip.AddrPort `json:"server"`
	Client netip.AddrPort `json:"client"`
	// SendsBy and ReceivesBy are what carries the next octet of each direction: kernel before the ring, rings, or
	// kernel-again.
	SendsBy    string `json:"sendsBy"`
	ReceivesBy string `json:"receivesBy"`
}

var (
	roles  = [...]string{"acceptor", "connector"}
	phases = [...]string{"kernel", "rings", "kernel-again"}
)

// identity tells pages apart.
type identity struct {
	device, inode uint64
}

// page is an opened page. Its size cannot change.
type page struct {
	identity
	file *os.File
}

var errNotPage = errors.New("not a page of the library")

// openPage opens a mapping of a process if it is a page: memory of the kernel's own file system with seals, which
// neither opening nor reading can wait for. device is that file system's.
func openPage(pid int, m mapping, device uint64) (*page, error) {
	if m.device != device || m.end-m.start != pageBytes || m.offset != 0 || m.permissions != "rw-s" {
		return nil, fmt.Errorf("%w: a mapping of another file, size or mode", errNotPage)
	}
	name := fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.start, m.end)
	link, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open (needs CAP_SYS_ADMIN)", Path: name, Err: err}
	}
	defer unix.Close(link)
	// The process may have mapped another file since, also one of a file system that does not answer.
	var st unix.Statx_t
	if err := unix.Statx(link, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &st); err != nil {
		return nil, os.NewSyscallError("statx", err)
	}
	if unix.Mkdev(st.Dev_major, st.Dev_minor) != device || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != pageBytes {
		return nil, fmt.Errorf("%w: another file or size", errNotPage)
	}
	// Without O_NONBLOCK it would wait for a lease (fcntl(2)) that the process holds.
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", link), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	p := &page{identity{device, st.Ino}, file}
	if err := p.check(); err != nil {
		file.Close()
		return nil, err
	}
	return p, nil
}

// check checks the seals and what does not change.
func (p *page) check() error {
	const needed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if seals, err := unix.FcntlInt(p.file.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&needed != needed {
		return fmt.Errorf("%w: its size is not sealed", errNotPage)
	}
	var head [switchAt]byte
	if _, err := p.file.ReadAt(head[:], 0); err != nil {
		return err
	}
	for i, want := range []uint32{pageMagic, pageVersion, pageBytes, entryBytes, entryCount} {
		if got := binary.NativeEndian.Uint32(head[4*i:]); got != want {
			return fmt.Errorf("%w that this agent knows: word %d is %#x, not %#x", errNotPage, i, got, want)
		}
	}
	return nil
}

// isOff reports whether the switch keeps everything on the kernel.
func (p *page) isOff() (bool, error) {
	var word [4]byte
	_, err := p.file.ReadAt(word[:], switchAt)
	return binary.NativeEndian.Uint32(word[:]) == 1, err
}

// setSwitch stores the switch by a mapping, since write(2) would wait for the lock of the file, which a write of the
// process may hold as long as it likes. The seals keep the mapped octets there.
func (p *page) setSwitch(off bool) error {
	mapped, err := unix.Mmap(int(p.file.Fd()), 0, headBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	defer unix.Munmap(mapped)
	word := uint32(0)
	if off {
		word = 1
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&mapped[switchAt])), word)
	return nil
}

func (p *page) counters() (*Counters, error) {
	var words [6 + len(refusals)]uint64
	var raw [8 * len(words)]byte
	if _, err := p.file.ReadAt(raw[:], countersAt); err != nil {
		return nil, err
	}
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(raw[8*i:])
	}
	c := &Counters{Attached: words[0], Unlisted: words[1], Received: words[2], Sent: words[3], Violations: words[4], ReturnedToKernel: words[5],
		Refused: map[string]uint64{}}
	for i, reason := range refusals {
		c.Refused[reason] = words[6+i]
	}
	return c, nil
}

// sessions returns the connections of processes. owners has their numbers by those that they see themselves: entries of
// others are what killed processes left.
//
// The library changes entries meanwhile, so those that differ between two readings are left out.
func (p *page) sessions(owners map[uint32]int) (all []Session, err error) {
	var readings [2][]byte
	for i := range readings {
		readings[i] = make([]byte, entryCount*entryBytes)
		if _, err := p.file.ReadAt(readings[i], headBytes); err != nil {
			return nil, err
		}
	}
	for at := 0; at < len(readings[0]); at += entryBytes {
		entry := readings[0][at : at+entryBytes]
		pid, ok := owners[binary.NativeEndian.Uint32(entry)]
		if !ok || !bytes.Equal(entry, readings[1][at:at+entryBytes]) {
			continue
		}
		if s, ok := decodeSession(entry); ok {
			s.PID = pid
			all = append(all, s)
		}
	}
	return all, nil
}

// decodeSession decodes an entry; false if a number has no meaning.
func decodeSession(entry []byte) (Session, bool) {
	role, sends, receives := entry[4], entry[5], entry[6]
	if int(role) >= len(roles) || int(sends) >= len(phases) || int(receives) >= len(phases) {
		return Session{}, false
	}
	end := func(address, port int) netip.AddrPort {
		a := netip.AddrFrom16([16]byte(entry[address : address+16])).Unmap()
		return netip.AddrPortFrom(a, binary.NativeEndian.Uint16(entry[port:]))
	}
	return Session{Role: roles[role], Server: end(16, 8), Client: end(32, 10), SendsBy: phases[sends], ReceivesBy: phases[receives]}, true
}
