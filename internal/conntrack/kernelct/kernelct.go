// SPDX-License-Identifier: Apache-2.0

// Package kernelct writes entries of the kernel's conntrack by netlink, in the network namespace of the caller: for
// flows whose packets pass it by, and return to it.
package kernelct

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/flow"
)

// A Flow is a TCP or UDP flow without NAT, as its opener sends it.
type Flow = flow.Tuple

// Flags of a direction of TCP in the kernel's conntrack (linux/netfilter/nf_conntrack_tcp.h).
const (
	tcpBeLiberal   = 0x08 // accept sequence numbers outside the window
	tcpMaxAckKnown = 0x20 // compare those of a RST with the highest acknowledgment number
)

// unrepliedTimeout is the timeout of the entry of a datagram without a reply, in seconds.
const unrepliedTimeout = 30

// tcpEstablished is a state of TCP there.
const tcpEstablished = 3

// Attributes of ctnetlink (linux/netfilter/nfnetlink_conntrack.h) that package nl lacks.
const (
	ctaProtoinfoTCPState         = 1
	ctaProtoinfoTCPFlagsOriginal = 4
	ctaProtoinfoTCPFlagsReply    = 5
)

// Table is the kernel's conntrack. It may be used by one goroutine at a time.
type Table struct {
	fd       int
	sequence uint32
	buffer   []byte
	// Timeouts of entries that Create makes, in seconds: TCP in state ESTABLISHED, and UDP streams.
	tcp, udp uint32
}

// Open opens a socket to the kernel's conntrack.
func Open() (*Table, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a socket to the kernel's conntrack: %w", err)
	}
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1), // errors without the request
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTimeout}),
	)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open a socket to the kernel's conntrack: %w", err)
	}
	return &Table{fd: fd, buffer: make([]byte, 1<<16), tcp: timeout("tcp_timeout_established", 432000), udp: timeout("udp_timeout_stream", 120)}, nil
}

// answerTimeout ends the wait for an answer that does not come, in seconds.
const answerTimeout = 10

// timeout reads a setting of the kernel's conntrack.
func timeout(name string, otherwise uint32) uint32 {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
	if err != nil {
		return otherwise
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return otherwise
	}
	return uint32(n)
}

// Close closes the socket.
func (t *Table) Close() { unix.Close(t.fd) }

// SetLiberal tells the kernel's conntrack that packets of a TCP connection pass it by, so that those which come back to
// the stack, at least its FIN or RST, are not invalid. The kernel does the same for its flowtables. The flow may be
// that of either direction. Flows of other protocols need nothing.
func (t *Table) SetLiberal(f Flow) error {
	if f.Protocol != unix.IPPROTO_TCP {
		return nil
	}
	err := t.execute(1, func(_ int, m *message) {
		m.begin(nl.IPCTNL_MSG_CT_NEW, 0, f)
		m.tuple(nl.CTA_TUPLE_ORIG, f)
		m.tcpInfo(0)
	}, nil)
	if err != nil {
		return fmt.Errorf("the kernel's conntrack does not take the flags of its TCP connection: %w", err)
	}
	return nil
}

// An Entry is one to be made.
type Entry struct {
	Flow
	// Replied: of an established flow. Otherwise of a datagram that waits for its reply.
	Replied bool
}

// Create adds entries of flows whose packets conntrack has not seen. Any packet of these flows is then valid. It is not
// an error if there is an entry.
func (t *Table) Create(entries ...Entry) error {
	err := t.execute(len(entries), func(i int, m *message) {
		e := &entries[i]
		m.begin(nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL, e.Flow)
		m.tuple(nl.CTA_TUPLE_ORIG, e.Flow)
		m.tuple(nl.CTA_TUPLE_REPLY, e.Reverse())
		status, seconds := conntrack.StatusConfirmed, uint32(unrepliedTimeout)
		if e.Replied {
			status, seconds = conntrack.StatusConfirmed|conntrack.StatusSeenReply|conntrack.StatusAssured, t.udp
		}
		m.number(nl.CTA_STATUS, uint32(status))
		if e.Protocol == unix.IPPROTO_TCP {
			seconds = t.tcp
			m.tcpInfo(tcpEstablished)
		}
		m.number(nl.CTA_TIMEOUT, seconds)
	}, nil, unix.EEXIST)
	if err != nil {
		return fmt.Errorf("add entries to the kernel's conntrack: %w", err)
	}
	return nil
}

// Delete deletes the entries of flows. It is not an error if there are none.
func (t *Table) Delete(flows ...Flow) error {
	if err := t.execute(len(flows), named(nl.IPCTNL_MSG_CT_DELETE, flows), nil, unix.ENOENT); err != nil {
		return fmt.Errorf("delete entries of the kernel's conntrack: %w", err)
	}
	return nil
}

// named are requests about flows, which are named as their openers send them.
func named(kind uint16, flows []Flow) func(i int, m *message) {
	return func(i int, m *message) {
		m.begin(kind, 0, flows[i])
		m.tuple(nl.CTA_TUPLE_ORIG, flows[i])
	}
}

// mostRequests are sent at once. The answers to as many fit into the socket's receive buffer.
const mostRequests = 32

// execute sends requests that a function writes, many at once, and calls a function with each answer, if it is not nil.
// Some errors count as none.
func (t *Table) execute(n int, write func(i int, m *message), answer func(i int, m syscall.NetlinkMessage) error, ignored ...unix.Errno) error {
	var m message
	for from := 0; from < n; from += mostRequests {
		m.octets = m.octets[:0]
		first := t.sequence + 1
		for i := from; i < min(from+mostRequests, n); i++ {
			write(i, &m)
			t.sequence++
			m.end(t.sequence)
		}
		m.acknowledge() // the kernel reports the errors of the others
		if err := unix.Sendto(t.fd, m.octets, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		if err := t.receive(first, func(i int, m syscall.NetlinkMessage) error {
			if answer == nil {
				return nil
			}
			return answer(from+i, m)
		}, ignored); err != nil {
			return err
		}
	}
	return nil
}

// receive takes the answers up to that of the last request.
func (t *Table) receive(first uint32, answer func(i int, m syscall.NetlinkMessage) error, ignored []unix.Errno) (failed error) {
	for {
		n, _, err := unix.Recvfrom(t.fd, t.buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(t.buffer[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch {
			case m.Header.Seq < first || m.Header.Seq > t.sequence: // of a request that was given up
				continue
			case m.Header.Type != unix.NLMSG_ERROR:
				err = answer(int(m.Header.Seq-first), m)
			default:
				err = errorOf(m.Data, ignored)
			}
			if failed == nil {
				failed = err
			}
			if m.Header.Type == unix.NLMSG_ERROR && m.Header.Seq == t.sequence {
				return failed
			}
		}
	}
}

func errorOf(body []byte, ignored []unix.Errno) error {
	if len(body) < 4 {
		return unix.EBADMSG
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
	if errno == 0 || slices.Contains(ignored, errno) {
		return nil
	}
	return errno
}

// AreOpen reports which flows the kernel's conntrack has, in the direction of their openers and without NAT, that are
// open.
func (t *Table) AreOpen(flows []Flow) ([]bool, error) {
	open := make([]bool, len(flows))
	err := t.execute(len(flows), named(nl.IPCTNL_MSG_CT_GET, flows), func(i int, m syscall.NetlinkMessage) (err error) {
		open[i], err = isOpen(flows[i], m)
		return err
	}, unix.ENOENT)
	if err != nil {
		return nil, fmt.Errorf("look up flows in the kernel's conntrack: %w", err)
	}
	return open, nil
}

// isOpen reads the entry of a flow.
func isOpen(f Flow, m syscall.NetlinkMessage) (bool, error) {
	var entry conntrack.Event
	err := entry.Unmarshal(netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(m.Header.Type)}, Data: m.Data})
	if err != nil {
		return false, err
	}
	e := entry.Flow
	there, back := FlowOf(&e.TupleOrig), FlowOf(&e.TupleReply)
	if there != f || back != f.Reverse() || e.Status&(conntrack.StatusNATMask|conntrack.StatusOffload) != 0 {
		return false, nil
	}
	return f.Protocol != unix.IPPROTO_TCP || e.ProtoInfo.TCP != nil && e.ProtoInfo.TCP.State == tcpEstablished, nil
}

// Handed returns the established flows of the kernel's conntrack that may have been handed to it: without NAT, mark and
// helper, TCP whose sequence numbers do not matter, and UDP. Entries of UDP do not tell.
func Handed() (flows []Flow, err error) {
	c, err := conntrack.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("open a socket to the kernel's conntrack: %w", err)
	}
	defer c.Close()
	all, err := c.Dump(nil)
	if err != nil {
		return nil, fmt.Errorf("list the kernel's conntrack: %w", err)
	}
	for i := range all {
		e := &all[i]
		there, back := FlowOf(&e.TupleOrig), FlowOf(&e.TupleReply)
		if e.Zone != 0 || e.Mark != 0 || e.Helper.Name != "" || back != there.Reverse() || e.Status&conntrack.StatusAssured == 0 ||
			e.Status&(conntrack.StatusNATMask|conntrack.StatusOffload|conntrack.StatusHelper) != 0 {
			continue
		}
		tcp := e.ProtoInfo.TCP
		if there.Protocol == unix.IPPROTO_UDP || tcp != nil && tcp.State == tcpEstablished && isLiberal(tcp.OriginalFlags) && isLiberal(tcp.ReplyFlags) {
			flows = append(flows, there)
		}
	}
	return flows, nil
}

// isLiberal reads flags and their mask.
func isLiberal(flags uint16) bool { return flags>>8&tcpBeLiberal != 0 }

// FlowOf returns the packets of a direction.
func FlowOf(t *conntrack.Tuple) Flow {
	return Flow{
		Source:      netip.AddrPortFrom(t.IP.SourceAddress.Unmap(), t.Proto.SourcePort),
		Destination: netip.AddrPortFrom(t.IP.DestinationAddress.Unmap(), t.Proto.DestinationPort),
		Protocol:    t.Proto.Protocol,
	}
}
