// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/sockdiag"
)

// Method is how sockets are found and ended.
type Method string

// The methods. What is found is found by BPF iterators (datapath.Sweep).
const (
	// Auto: the first of the following that the kernel can.
	Auto Method = "auto"
	// Iterator: the iterators end the sockets, too (bpf_sock_destroy, Linux 6.5).
	Iterator Method = "iterator"
	// Netlink: SOCK_DESTROY of sock_diag(7) ends them (CONFIG_INET_DIAG_DESTROY).
	Netlink Method = "netlink"
	// Off: nothing is ended.
	Off Method = "off"
)

// Methods are the values of the flag.
var Methods = []string{string(Auto), string(Iterator), string(Netlink), string(Off)}

// A finder goes over the sockets of the calling thread's network namespace:
// *datapath.Sweep.
type finder interface {
	UDP() ([]datapath.StaleSocket, error)
	TCP(doomed ...uint64) ([]datapath.StaleSocket, error)
}

// opener loads a finder that ends what it finds, or one that only tells.
type opener func(end bool) (finder, error)

// choose takes the method that was asked for, or the best there is, and says
// why. An error says why it is none although one was wanted.
func choose(asked Method, canEnd bool, open opener) (method Method, finder finder, why string, err error) {
	if asked == Off {
		return Off, nil, "turned off by --terminate-sockets=off", nil
	}
	const lacking = "the kernel lacks bpf_sock_destroy (Linux 6.5)"
	switch {
	case asked == Netlink:
		why = "asked for by --terminate-sockets=netlink"
	case canEnd:
		finder, err = open(true)
		if err == nil {
			return Iterator, finder, "the kernel has bpf_sock_destroy", nil
		}
		if asked == Iterator {
			return Off, nil, "the sweep cannot be loaded", err
		}
		why = fmt.Sprintf("the sweep cannot be loaded with bpf_sock_destroy: %v", err)
	case asked == Iterator:
		return Off, nil, lacking, errors.New(lacking + ": use --terminate-sockets=auto or netlink")
	default:
		why = lacking
	}
	if finder, err = open(false); err != nil {
		return Off, nil, "the sweep cannot be loaded", err
	}
	return Netlink, finder, why, nil
}

// endByNetlink ends sockets of the calling thread's network namespace. It finds
// them again by their cookies: the kernel asks for the device a socket is bound
// to, too. Those that are gone meanwhile do not count.
func endByNetlink(protocol uint8, stale []datapath.StaleSocket) (ended int, err error) {
	if len(stale) == 0 {
		return 0, nil
	}
	wanted := map[uint64]netip.AddrPort{} // the backend, by the socket's cookie
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
			continue // or it has been connected anew, which leaves it its cookie
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
