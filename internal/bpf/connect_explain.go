// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/cilium/ebpf"
)

// A ConnectCall is a connect(2) of a new socket to explain.
type ConnectCall struct {
	// NetnsCookie is the cookie of the socket's network namespace.
	NetnsCookie uint64
	// Source is the address that the socket is bound to; not valid: it is not bound.
	Source      netip.Addr
	Destination netip.AddrPort
	Protocol    uint8
}

// ConnectExplanation is what the socket programs do with a connect(2).
type ConnectExplanation = ConnectExplainConnectExplanation

// ConnectReason is the reason for the result of a connect(2).
type ConnectReason = ConnectExplainConnectReason

// The values of ConnectReason.
const (
	ConnectDecision      = ConnectExplainConnectReasonCONNECT_DECISION
	ConnectNoFrontend    = ConnectExplainConnectReasonCONNECT_NO_FRONTEND
	ConnectOptedOut      = ConnectExplainConnectReasonCONNECT_OPTED_OUT
	ConnectUDPOtherPort  = ConnectExplainConnectReasonCONNECT_UDP_OTHER_PORT
	ConnectSource        = ConnectExplainConnectReasonCONNECT_SOURCE
	ConnectSourceUnknown = ConnectExplainConnectReasonCONNECT_SOURCE_UNKNOWN
	ConnectNoBackend     = ConnectExplainConnectReasonCONNECT_NO_BACKEND
	ConnectProtocol      = ConnectExplainConnectReasonCONNECT_PROTOCOL
	ConnectMasqueraded   = ConnectExplainConnectReasonCONNECT_MASQUERADED
)

// FrontendOf returns the key of the frontend that was found; zero: none.
func FrontendOf(e *ConnectExplanation) FrontendKey {
	return FrontendKey{Address: Address(e.Frontend.Address), Port: e.Frontend.Port, Protocol: e.Frontend.Protocol}
}

// ConnectedTo returns the destination after the rewrite.
func ConnectedTo(e *ConnectExplanation) netip.AddrPort {
	return netip.AddrPortFrom(Address(e.Destination).Addr(), NetworkOrder(e.Port))
}

// ExplainConnect runs the decision of the socket programs on the pinned tables of a bpffs directory, without
// changing them. other reports that the attached programs are of another version. The error is
// os.ErrNotExist if they are not attached.
func ExplainConnect(bpffs string, call ConnectCall) (e *ConnectExplanation, other bool, err error) {
	attached, err := Attachments(bpffs, Socket())
	if err != nil {
		return nil, false, err
	}
	i := slices.IndexFunc(attached, func(a Attachment) bool { return a.Hook == connectHook })
	if i < 0 {
		return nil, false, fmt.Errorf("under %s no program is attached to %s: set --pins to the agent's; if it is, no agent has run yet: %w",
			bpffs, connectHook, os.ErrNotExist)
	}
	e, err = runConnect(bpffs, ebpf.ProgramID(attached[i].ProgramID), call)
	if err != nil {
		return nil, false, fmt.Errorf("explain connect() in a dry run: %w", err)
	}
	hook := DryProgram{Program: SockProgBeelineConnect4, Object: LoadSock, Components: []*Component{Socket()}}
	defer hook.Close()
	if err := hook.Load(bpffs, ebpf.ProgramID(attached[i].ProgramID)); err != nil {
		return nil, false, fmt.Errorf("load the program of %s for a comparison: %w", connectHook, err)
	}
	other, err = hook.Differs(ebpf.ProgramID(attached[i].ProgramID))
	return e, other, err
}

// connectHook is the hook whose constants a dry run copies. The hook for IPv6 has the same.
const connectHook = "connect4"

func runConnect(bpffs string, attached ebpf.ProgramID, call ConnectCall) (*ConnectExplanation, error) {
	d := DryProgram{Program: ConnectExplainProgBeelineExplain, Object: LoadConnectExplain, Components: []*Component{Socket()}}
	defer d.Close()
	if err := d.Load(bpffs, attached); err != nil {
		return nil, err
	}
	calls, question := d.Loaded.Maps[ConnectExplainMapConnectExplained], call.question()
	if err := calls.Put(uint32(0), &question); err != nil {
		return nil, err
	}
	// The kernel does not run tc programs on less than an Ethernet header.
	if _, err := d.Loaded.Programs[d.Program].Run(&ebpf.RunOptions{Data: make([]byte, 14)}); err != nil {
		return nil, fmt.Errorf("run the program: %w", err)
	}
	e := &ConnectExplanation{}
	if err := calls.Lookup(uint32(0), e); err != nil {
		return nil, err
	}
	if e.Done == 0 {
		return nil, errors.New("the program has not handled the call")
	}
	return e, nil
}

// question encodes a call. An unbound socket has the unspecified address of the destination's family.
func (c ConnectCall) question() ConnectExplanation {
	source := c.Source
	if !source.IsValid() {
		source = netip.IPv6Unspecified()
		if c.Destination.Addr().Is4() {
			source = netip.IPv4Unspecified()
		}
	}
	e := ConnectExplanation{NetnsCookie: c.NetnsCookie, Port: NetworkOrder(c.Destination.Port()), Protocol: c.Protocol}
	e.Source.Bytes, e.Destination.Bytes = source.As16(), c.Destination.Addr().As16()
	return e
}
