// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
)

// Iterators find the sockets of a network namespace that are connected to a backend that no longer serves
// (R29, R30).
type Iterators struct {
	collection *ebpf.Collection
	udp, tcp   *link.Iter
	toAbort    bpf.Hash[uint64, uint32]
}

// OpenIterators loads the socket GC programs with the existing tables. With end they destroy the sockets
// that they find, which needs bpf_sock_destroy (HaveSockDestroy); else they only report them. An error
// means that this kernel does not support it; everything else works without it.
func OpenIterators(d *bpf.Datapath, end bool) (s *Iterators, err error) {
	spec, err := bpf.LoadSockGC()
	if err != nil {
		return nil, err
	}
	tables, err := d.Share(spec)
	if err != nil {
		return nil, err
	}
	s, err = loadIterators(spec, tables, end)
	defer func() {
		if err != nil {
			s.Close()
			s = nil
		}
	}()
	if err != nil {
		return s, err
	}
	s.toAbort = bpf.NewHash[uint64, uint32](&bpf.Table{Name: bpf.SockGCMapSocketsToAbort}, s.collection.Maps[bpf.SockGCMapSocketsToAbort])
	if s.tcp, err = attachIterator(s.collection.Programs[bpf.SockGCProgBeelineSockGcTcp]); err != nil {
		return s, err
	}
	return s, s.clearToAbort() // left by an agent that was killed before its GC pass
}

// openServiceSockets loads the socket GC program for UDP with the socket storage that is pinned in a bpffs
// directory. UDP then finds each socket that a hook has connected to a backend, whether that serves or not. Socket
// storage of each version of the tables will do, because its layout never changes.
//
// Errors: os.ErrNotExist if no socket storage is pinned there.
func openServiceSockets(bpffs string, end bool) (s *Iterators, err error) {
	spec, err := bpf.LoadSockGC()
	if err != nil {
		return nil, err
	}
	delete(spec.Programs, bpf.SockGCProgBeelineSockGcTcp)
	if err := spec.Variables[bpf.SockGCVarAnyBackend].Set(uint8(1)); err != nil {
		return nil, err
	}
	storage := map[string]*ebpf.Map{}
	defer func() {
		for _, m := range storage {
			m.Close() // the collection has duplicates
		}
	}()
	for _, name := range []string{bpf.SockMapConnected, bpf.SockMapConnectedPrev} {
		if storage[name], err = anyPinned(bpffs, name); err != nil {
			delete(storage, name)
			return nil, err
		}
	}
	s, err = loadIterators(spec, storage, end)
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// anyPinned opens a table of socket storage. During a migration two directories have it, and share it.
func anyPinned(bpffs, name string) (*ebpf.Map, error) {
	pins, err := filepath.Glob(filepath.Join(bpffs, "tables_*", name))
	if err != nil {
		return nil, err
	}
	if len(pins) == 0 {
		return nil, fmt.Errorf("table %s is not pinned under %s: %w", name, bpffs, os.ErrNotExist)
	}
	return ebpf.LoadPinnedMap(pins[0], nil)
}

// loadIterators loads the socket GC programs and attaches the one for UDP. After an error the result is to be closed.
func loadIterators(spec *ebpf.CollectionSpec, tables map[string]*ebpf.Map, end bool) (s *Iterators, err error) {
	s = &Iterators{}
	var mayEnd uint8
	if end {
		mayEnd = 1
	}
	if err := spec.Variables[bpf.SockGCVarMayDestroy].Set(mayEnd); err != nil {
		return s, err
	}
	s.collection, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: tables, Cache: bpf.KernelBTF()})
	if err != nil {
		return s, fmt.Errorf("load the socket iterators: %w", err)
	}
	s.udp, err = attachIterator(s.collection.Programs[bpf.SockGCProgBeelineSockGcUdp])
	return s, err
}

func attachIterator(p *ebpf.Program) (*link.Iter, error) {
	it, err := link.AttachIter(link.IterOptions{Program: p})
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", p, err)
	}
	return it, nil
}

// Close unloads the socket GC programs.
func (s *Iterators) Close() {
	for _, it := range []*link.Iter{s.udp, s.tcp} {
		if it != nil {
			it.Close()
		}
	}
	if s.collection != nil {
		s.collection.Close()
	}
}

// UDP iterates once over the UDP sockets of the calling thread's network namespace. It returns those that
// it has destroyed (Ended is 1), or that should be destroyed. A pass that destroys sockets may miss others
// (before Linux 6.16 it resumes in a list by position): repeat it until a pass finds none.
func (s *Iterators) UDP() ([]bpf.StaleSocket, error) { return readIterator(s.udp) }

// TCP does the same for TCP sockets, and destroys those in toAbort, which are socket cookies.
func (s *Iterators) TCP(toAbort ...uint64) (found []bpf.StaleSocket, err error) {
	defer func() {
		for _, cookie := range toAbort {
			err = errors.Join(err, s.toAbort.Delete(cookie))
		}
	}()
	for _, cookie := range toAbort {
		if err := s.toAbort.Put(cookie, 1); err != nil {
			return nil, err
		}
	}
	return readIterator(s.tcp)
}

// clearToAbort empties the table of sockets to abort.
func (s *Iterators) clearToAbort() error {
	all, err := s.toAbort.All()
	for cookie := range all {
		err = errors.Join(err, s.toAbort.Delete(cookie))
	}
	return err
}

const staleSocketSize = int(unsafe.Sizeof(bpf.StaleSocket{}))

// readIterator runs an iterator over the calling thread's network namespace.
func readIterator(it *link.Iter) ([]bpf.StaleSocket, error) {
	sequence, err := it.Open()
	if err != nil {
		return nil, err
	}
	defer sequence.Close()
	var all []bpf.StaleSocket
	buffer := make([]bpf.StaleSocket, 256)
	memory := unsafe.Slice((*byte)(unsafe.Pointer(&buffer[0])), len(buffer)*staleSocketSize)
	for {
		n, err := sequence.Read(memory) // complete records
		all = append(all, buffer[:n/staleSocketSize]...)
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR): // a million sockets, none of them reported
		case err != nil:
			return all, fmt.Errorf("read the socket iterator: %w", err)
		case n%staleSocketSize != 0:
			return all, fmt.Errorf("read the socket iterator: %d bytes are not a multiple of the record size %d", n, staleSocketSize)
		}
	}
}
