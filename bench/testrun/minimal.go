// SPDX-License-Identifier: Apache-2.0

package testrun

import (
	"net/netip"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/internal/bpf"
)

//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types CostXDP cost_xdp.bpf.c -- -I../bpf
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types CostTC cost_tc.bpf.c -- -I../bpf

// FillMinimal gives the yardstick a Service, in its tables of bench/bpf/minimal.h.
func FillMinimal(tables map[string]*ebpf.Map, asked netip.AddrPort, protocol uint8, endpoints ...netip.Addr) error {
	var key struct {
		Address  [16]byte
		Port     uint16
		Protocol uint8
		_        uint8
	}
	key.Address, key.Port, key.Protocol = asked.Addr().As16(), bpf.NetworkOrder(asked.Port()), protocol
	if err := tables[CostXDPMapMinimalServices].Put(key, uint32(len(endpoints))); err != nil {
		return err
	}
	for i, a := range endpoints {
		var row struct {
			Address [16]byte
			Port    uint16
			_       uint16
		}
		row.Address, row.Port = a.As16(), bpf.NetworkOrder(harness.ServerPort)
		if err := tables[CostXDPMapMinimalBackends].Put(uint32(i), row); err != nil {
			return err
		}
	}
	return nil
}
