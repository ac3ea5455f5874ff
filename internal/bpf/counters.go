// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// PinnedCounters reads the counters of each CPU in a pinned table; nil if there is none. Errors call them what.
//
// Errors: ErrOtherCounters.
func PinnedCounters[T any](bpffs, table, what string) ([]T, error) {
	m, err := ebpf.LoadPinnedMap(TablePath(bpffs, table), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s under %s: %w", what, bpffs, err)
	}
	defer m.Close()
	perCPU, err := CountersIn[T](m)
	if err != nil && !errors.Is(err, ErrOtherCounters) {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return perCPU, err
}

// CountersIn reads the counters of each CPU.
func CountersIn[T any](m *ebpf.Map) (perCPU []T, err error) {
	var row T
	if uintptr(m.ValueSize()) != unsafe.Sizeof(row) {
		return nil, ErrOtherCounters
	}
	err = m.Lookup(uint32(0), &perCPU)
	return perCPU, err
}

// AddByName adds counters to the sums of their names.
func AddByName(sums map[string]uint64, names []string, counts []uint64) {
	for i, n := range counts {
		sums[names[i]] += n
	}
}

// ReadCounters sums the counters of the socket hooks over all CPUs.
//
// Errors: os.ErrNotExist if there are none; ErrOtherCounters.
func ReadCounters(bpffs string) (*SocketCounters, error) {
	perCPU, err := PinnedCounters[SocketCounters](bpffs, SockMapSocketCounts, "the counters of sockets")
	if perCPU == nil && err == nil {
		err = fmt.Errorf("the counters of sockets under %s: %w", bpffs, os.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return Sum(perCPU), nil
}

// Sum adds up structures of counters, field by field.
func Sum[T any](perCPU []T) *T {
	sum := new(T)
	total := reflect.ValueOf(sum).Elem()
	for _, c := range perCPU {
		for i := range total.NumField() {
			if field := total.Field(i); field.CanSet() {
				field.SetUint(field.Uint() + reflect.ValueOf(c).Field(i).Uint())
			}
		}
	}
	return sum
}

// EnumNames reads the names of the first n values of an enum from the BTF of an object, once: in lower case without
// a prefix.
func EnumNames(load func() (*ebpf.CollectionSpec, error), enum, prefix string, n int) func() ([]string, error) {
	return sync.OnceValues(func() ([]string, error) {
		spec, err := load()
		if err != nil {
			return nil, err
		}
		var found *btf.Enum
		if err := spec.Types.TypeByName(enum, &found); err != nil {
			return nil, err
		}
		names := make([]string, n)
		for _, v := range found.Values {
			if v.Value < uint64(n) {
				names[v.Value] = strings.ToLower(strings.TrimPrefix(v.Name, prefix))
			}
		}
		return names, nil
	})
}

// ErrOtherCounters means that counters and events are of another version of Beeline, whose reasons have
// other numbers.
var ErrOtherCounters = errors.New("the attached programs belong to another version of Beeline, with other reasons: start this version's agent, or use that version's command")
