// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/util/kernelclock"
)

// attachMessages attaches the programs for messages and for what TCP receives to the table of sockets, which keeps
// them as long as the table is pinned. Sockets that are in the table keep the programs that they have joined with.
//
// Not a link: Linux supports those for such maps from 6.10 on.
func (m *Datapath) attachMessages() error {
	if err := m.attachRead(); err != nil {
		return fmt.Errorf("attach to the tracepoint tcp_rcv_space_adjust: %w", err)
	}
	for name, hook := range map[string]ebpf.AttachType{bpf.MeshProgBeelineMeshReceive: ebpf.AttachSkSKBVerdict, bpf.MeshProgBeelineMeshMessage: ebpf.AttachSkMsgVerdict} {
		err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: m.maps(bpf.MeshMapMeshSockets).FD(), Program: m.datapath.Program(name), Attach: hook})
		if err != nil {
			return fmt.Errorf("attach %s to table %s: %w", name, bpf.MeshMapMeshSockets, err)
		}
	}
	return nil
}

// readPath is the pin of the link of the program that sees how sockets are read.
func readPath(bpffs string) string { return filepath.Join(bpffs, "links", componentName+"-read") }

// attachRead attaches the program that sees how sockets are read, or replaces it: such links cannot be updated. For
// a moment both are attached, which does no harm.
func (m *Datapath) attachRead() error {
	l, err := link.AttachTracing(link.TracingOptions{Program: m.datapath.Program(bpf.MeshProgBeelineMeshRead)})
	if err != nil {
		return err
	}
	defer l.Close()
	path := readPath(m.datapath.BPFFS())
	if err := os.Remove(path + "_new"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := l.Pin(path + "_new"); err != nil {
		return err
	}
	if err := os.Rename(path+"_new", path); err != nil {
		return err
	}
	return m.datapath.Hold(path)
}

// detachRead detaches it. Before, it makes all readers unknown, so that messages of sockets that are in the table
// of sockets take TCP from now on.
func detachRead(bpffs string) error {
	if err := forgetReaders(bpffs); err != nil {
		return fmt.Errorf("empty table %s: %w", bpf.MeshMapMeshReaders, err)
	}
	err := os.Remove(readPath(bpffs))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func forgetReaders(bpffs string) error {
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(bpffs, bpf.MeshMapMeshReaders), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	table := bpf.NewHash[uint64, bpf.MeshMeshReader](bpf.Declared(tables, bpf.MeshMapMeshReaders), m)
	readers, err := table.All()
	for cookie := range readers {
		err = errors.Join(err, table.Delete(cookie))
	}
	return err
}

func (m *Datapath) programs() bpf.Hash[bpf.MeshMeshProgramKey, bpf.MeshMeshProgram] {
	return tableOf[bpf.MeshMeshProgramKey, bpf.MeshMeshProgram](m, bpf.MeshMapMeshPodPrograms)
}

// ForgetMembers deletes the rows of sockets and programs in network namespaces for whose cookie gone returns true:
// no program has seen the end of sockets that outlived the programs at their cgroup. Messages of one that is still open
// take TCP.
func (m *Datapath) ForgetMembers(gone func(netns uint64) bool) error {
	members := tableOf[bpf.MeshMeshTuple, bpf.MeshMeshMember](m, bpf.MeshMapMeshMembers)
	readers := tableOf[uint64, bpf.MeshMeshReader](m, bpf.MeshMapMeshReaders)
	all, err := members.All()
	for tuple, member := range all {
		if gone(tuple.Netns) {
			err = errors.Join(err, members.Delete(tuple), readers.Delete(member.Cookie))
		}
	}
	programs, e := m.programs().All()
	err = errors.Join(err, e)
	for key := range programs {
		if gone(key.Netns) {
			err = errors.Join(err, m.programs().Delete(key))
		}
	}
	acceptors := tableOf[bpf.MeshMeshAcceptorKey, bpf.MeshMeshAcceptor](m, bpf.MeshMapMeshAcceptors)
	ports, e := acceptors.All()
	err = errors.Join(err, e)
	for key := range ports {
		if gone(key.Netns) {
			err = errors.Join(err, acceptors.Delete(key))
		}
	}
	return err
}

// MessagesSkipTCP reports whether messages between applications and proxies skip TCP.
func (m *Datapath) MessagesSkipTCP() bool { return m.Options != nil && m.Options.Sockmap }

// A Program is a program of a pod: all processes whose main thread has this name.
type Program struct {
	Netns uint64 // cookie
	Name  string
}

func programOf(k *bpf.MeshMeshProgramKey) Program {
	name := make([]byte, len(k.Name))
	for i, c := range k.Name {
		name[i] = byte(c)
	}
	return Program{k.Netns, unix.ByteSliceToString(name)}
}

// Readers are the programs to which all messages take TCP.
type Readers struct {
	// Splicers have read by splice(2) what was sent to sockets whose messages may skip TCP.
	Splicers []Program
	// Full are the cookies of the pods' network namespaces that have as many known programs as they may have:
	// messages to further ones take TCP.
	Full []uint64
}

// Readers reads them from the table, in no order.
func (m *Datapath) Readers() (r Readers, err error) {
	programs, err := m.programs().All()
	for key, p := range programs {
		if p.Splices != 0 {
			r.Splicers = append(r.Splicers, programOf(&key))
		}
		if uint64(p.Names) >= uint64(bpf.MeshMeshSizeMESH_PROGRAMS_OF_POD) {
			r.Full = append(r.Full, key.Netns)
		}
	}
	return r, err
}

// A StuckSocket has messages in its queue that splice(2) of its program has not found.
type StuckSocket struct {
	Cookie  uint64
	Program Program
}

// StuckSockets returns the sockets that have been so for a time.
func (m *Datapath) StuckSockets(age time.Duration) (all []StuckSocket, err error) {
	counts, err := ReadCounters(m.datapath.BPFFS())
	if err != nil || counts == nil || counts.Stuck == 0 {
		return nil, err
	}
	readers, err := tableOf[uint64, bpf.MeshMeshReader](m, bpf.MeshMapMeshReaders).All()
	now := kernelclock.Now()
	for cookie, r := range readers {
		if r.Stuck == 0 || r.Stuck+uint64(age) > now {
			continue
		}
		waits, e := m.messagesWait(r.Sock, cookie)
		err = errors.Join(err, e)
		if waits {
			all = append(all, StuckSocket{cookie, programOf(&r.Program)})
		}
	}
	return all, err
}

// messagesWait asks the kernel whether messages wait in the queue of the socket at an address.
func (m *Datapath) messagesWait(sock, cookie uint64) (bool, error) {
	waits, err := m.datapath.Program(bpf.MeshProgBeelineMeshUnread).Run(&ebpf.RunOptions{Context: &bpf.MeshMeshUnread{Sock: sock, Cookie: cookie}})
	if err != nil {
		return false, fmt.Errorf("run program %s: %w", bpf.MeshProgBeelineMeshUnread, err)
	}
	return waits != 0, nil
}
