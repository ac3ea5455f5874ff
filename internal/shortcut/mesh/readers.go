// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/podcgroup"
	"beeline.io/beeline/internal/node/sockdiag"
	"beeline.io/beeline/internal/report/condition"
)

// stuckAge is how long messages wait that splice(2) has not found, until their connection is aborted. The program may
// read them in another way meanwhile.
const stuckAge = 2 * time.Second

// watchReaders finds the programs that read by splice(2), and aborts the connections of those that have missed
// messages: nothing else can bring these into TCP's order, and the program would wait for ever.
func (s *Shortcut) watchReaders() {
	if !s.datapath.MessagesSkipTCP() {
		return
	}
	readers, err := s.datapath.Readers()
	slices.SortFunc(readers.Splicers, func(a, b Program) int {
		return cmp.Or(cmp.Compare(a.Netns, b.Netns), cmp.Compare(a.Name, b.Name))
	})
	s.mu.Lock()
	s.readers = readers
	s.mu.Unlock()
	stuck, e := s.datapath.StuckSockets(stuckAge)
	err = errors.Join(err, e)
	for i := range stuck {
		s.abort(&stuck[i])
	}
	if err != nil {
		s.log.Error("mesh: find programs that read by splice(2)", "error", err)
	}
}

// abort aborts a connection. Both ends get an error.
func (s *Shortcut) abort(stuck *StuckSocket) {
	i := slices.IndexFunc(s.pods, func(p Pod) bool { return p.NetNSCookie == stuck.Program.Netns })
	if i < 0 {
		return
	}
	aborted, err := abortIn(s.pods[i].CgroupDirectory, stuck.Cookie)
	switch {
	case err != nil:
		s.log.Error("mesh: abort a connection whose reader misses messages", "pod", s.pods[i].Label(), "program", stuck.Program.Name, "error", err)
	case aborted:
		s.log.Warn("mesh: aborted a connection whose reader has begun to read by splice(2) and misses messages; from now on its connections take TCP",
			"pod", s.pods[i].Label(), "program", stuck.Program.Name)
	}
}

// abortIn aborts the connection of a socket in the network namespace of a pod.
func abortIn(directory string, cookie uint64) (aborted bool, err error) {
	namespace, err := podcgroup.Namespace(directory)
	if namespace == nil || err != nil {
		return false, err
	}
	defer namespace.Close()
	err = namespace.Do(func() error {
		all, err := sockdiag.List(unix.IPPROTO_TCP, sockdiag.AllStates&^sockdiag.Listening)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(s sockdiag.Socket) bool { return s.Cookie == cookie }); i >= 0 {
			aborted, err = sockdiag.Destroy(all[i])
		}
		return err
	})
	return aborted, err
}

// readerConditions names the programs to which all messages take TCP, and the pods with too many programs.
func (s *Shortcut) readerConditions(pods []Pod) (all condition.List) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, program := range s.readers.Splicers {
		if i := slices.IndexFunc(pods, func(p Pod) bool { return p.NetNSCookie == program.Netns }); i >= 0 {
			all = append(all, condition.MeshProgramSplices.New("connections of the program %q take TCP, because it reads by splice(2)", program.Name).At(pods[i].Label()))
		}
	}
	for _, p := range pods {
		if p.NetNSCookie != 0 && slices.Contains(s.readers.Full, p.NetNSCookie) {
			all = append(all, condition.MeshProgramsFull.New("%d programs with different names have read from proxies or applications, and connections of further ones take TCP",
				bpf.MeshMeshSizeMESH_PROGRAMS_OF_POD).At(p.Label()))
		}
	}
	return all
}
