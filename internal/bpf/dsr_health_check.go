// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
)

// DSRCheck is a health check's connection that takes the path of clients' packets (bpf/dsr/health_check.h).
type DSRCheck struct {
	DSR DSR
	// Connected is the address that the socket is connected to, at the backend's port: the destination
	// of the encapsulated packets.
	Connected         netip.Addr
	Frontend, Backend netip.AddrPort
}

// DSRChecks are the checks in progress. Its methods may be called from any goroutine.
type DSRChecks struct {
	checks Hash[uint64, EdgeTCDsrCheck]
	on     *ebpf.Map

	mu      sync.Mutex
	running int
}

// NewDSRChecks returns the table of checks, without those of an earlier agent; nil if there is no edge.
func NewDSRChecks(d *Datapath) (*DSRChecks, error) {
	if d.Map(EdgeTCMapDsrChecks) == nil {
		return nil, nil
	}
	c := &DSRChecks{
		checks: NewHash[uint64, EdgeTCDsrCheck](Declared(edgeTables, EdgeTCMapDsrChecks), d.Map(EdgeTCMapDsrChecks)),
		on:     d.Map(EdgeTCMapDsrChecksOn),
	}
	left, err := c.checks.All()
	for cookie := range left {
		err = errors.Join(err, c.checks.Delete(cookie))
	}
	if err = errors.Join(err, c.setOn(0)); err != nil {
		return nil, fmt.Errorf("delete the health checks of an earlier agent: %w", err)
	}
	return c, nil
}

// setOn makes programs look for replies to checks, or stops that.
func (c *DSRChecks) setOn(on uint32) error { return c.on.Put(uint32(0), on) }

// Begin makes programs encapsulate what a socket sends. The socket is identified by its cookie (SO_COOKIE).
func (c *DSRChecks) Begin(cookie uint64, check DSRCheck) error {
	err := c.checks.Put(cookie, EdgeTCDsrCheck{
		Connected: AddressFrom(check.Connected),
		Frontend:  AddressFrom(check.Frontend.Addr()), FrontendPort: NetworkOrder(check.Frontend.Port()),
		Backend: AddressFrom(check.Backend.Addr()), BackendPort: NetworkOrder(check.Backend.Port()),
		Dsr: uint8(check.DSR),
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running++
	if c.running > 1 {
		return nil
	}
	return c.setOn(1)
}

// End must follow each Begin, after the socket has been closed.
func (c *DSRChecks) End(cookie uint64) error {
	err := c.checks.Delete(cookie)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running--; c.running > 0 {
		return err
	}
	return errors.Join(err, c.setOn(0))
}
