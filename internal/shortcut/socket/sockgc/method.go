// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/sockdiag"
)

// Method is how sockets are found and terminated.
type Method string

// The methods. BPF iterators find the sockets (Iterators).
const (
	// Auto is the first of the following that the kernel supports.
	Auto Method = "auto"
	// Iterator: the iterators also terminate the sockets (bpf_sock_destroy, Linux 6.5).
	Iterator Method = "iterator"
	// Netlink: SOCK_DESTROY of sock_diag(7) terminates them (CONFIG_INET_DIAG_DESTROY).
	Netlink Method = "netlink"
	// Off: no sockets are terminated.
	Off Method = "off"
)

// Methods are the values of --terminate-sockets.
var Methods = []string{string(Auto), string(Iterator), string(Netlink), string(Off)}

// A finder iterates over the sockets of the calling thread's network namespace: *Iterators.
type finder interface {
	UDP() ([]bpf.StaleSocket, error)
	TCP(toAbort ...uint64) ([]bpf.StaleSocket, error)
}

// choose returns the requested method, or the best available one, and why. The error is why none is available
// although one was requested. open loads a finder that terminates the sockets it finds, or only reports them.
func choose[F finder](asked Method, canEnd bool, open func(end bool) (F, error)) (method Method, found finder, why string, err error) {
	if asked == Off {
		return Off, nil, "turned off by --terminate-sockets=off", nil
	}
	const lacking = "the kernel lacks bpf_sock_destroy (Linux 6.5)"
	switch {
	case asked == Netlink:
		why = "set by --terminate-sockets=netlink"
	case canEnd:
		if found, err = open(true); err == nil {
			return Iterator, found, "the kernel has bpf_sock_destroy", nil
		}
		if asked == Iterator {
			return Off, nil, "the socket GC programs cannot be loaded", err
		}
		why = fmt.Sprintf("the socket GC programs cannot be loaded with bpf_sock_destroy: %v", err)
	case asked == Iterator:
		return Off, nil, lacking, errors.New(lacking + ": use --terminate-sockets=auto or netlink")
	default:
		why = lacking
	}
	if found, err = open(false); err != nil {
		return Off, nil, "the socket GC programs cannot be loaded", err
	}
	return Netlink, found, why, nil
}

// destroyByNetlink destroys sockets of the calling thread's network namespace. It lists them again to match
// their cookies, because the kernel also requires the device to which a socket is bound. It does not count
// sockets that vanished meanwhile.
func destroyByNetlink(protocol uint8, stale []bpf.StaleSocket) (ended int, err error) {
	if len(stale) == 0 {
		return 0, nil
	}
	wanted := map[uint64]netip.AddrPort{} // backends by socket cookie
	for i := range stale {
		wanted[stale[i].Cookie] = stale[i].Connection().Backend
	}
	states := sockdiag.AllStates &^ sockdiag.Listening
	if protocol == unix.IPPROTO_UDP {
		states = sockdiag.Established
	}
	sockets, err := sockdiag.List(protocol, states)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, s := range sockets {
		backend, found := wanted[s.Cookie]
		if !found || netip.AddrPortFrom(s.Remote.Addr().Unmap(), s.Remote.Port()) != backend {
			continue // or it was reconnected, which keeps its cookie
		}
		done, err := sockdiag.Destroy(s)
		if err != nil {
			errs = append(errs, err)
		} else if done {
			ended++
		}
	}
	return ended, errors.Join(errs...)
}
