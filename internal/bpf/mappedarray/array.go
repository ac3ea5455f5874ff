// SPDX-License-Identifier: Apache-2.0

// Package mappedarray reads and writes BPF arrays in mapped memory.
package mappedarray

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Array is a BPF_F_MMAPABLE array map. Its memory is mapped in windows, when they are accessed: the
// kernel makes all pages of a mapping resident at once, and most of a table is usually unused.
type Array[V comparable] struct {
	m       *ebpf.Map
	stride  uintptr
	length  uint32
	rows    uint32 // per window
	windows []atomic.Pointer[byte]
	mapping sync.Mutex
}

// Sizes of windows, in bytes: for access to single rows, and for reading all rows.
const (
	pickWindow = 64 << 10
	ReadWindow = 1 << 20
)

// New returns the rows of a map.
func New[V comparable](m *ebpf.Map) *Array[V] {
	stride := Stride(m)
	rows := uint32(max(1, pickWindow/stride))
	return &Array[V]{
		m: m, stride: stride, length: m.MaxEntries(), rows: rows,
		windows: make([]atomic.Pointer[byte], (m.MaxEntries()+rows-1)/rows),
	}
}

// at panics if there is no such row, or if its window cannot be mapped, because the address space is
// exhausted or the map has been closed.
func (a *Array[V]) at(i uint32) *V {
	if i >= a.length {
		panic(fmt.Sprintf("row %d of %d of %s", i, a.length, a.m))
	}
	first := a.windows[i/a.rows].Load()
	if first == nil {
		first = a.open(i / a.rows)
	}
	return (*V)(unsafe.Add(unsafe.Pointer(first), uintptr(i%a.rows)*a.stride))
}

// open maps a window. It stays mapped.
func (a *Array[V]) open(window uint32) *byte {
	a.mapping.Lock()
	defer a.mapping.Unlock()
	if first := a.windows[window].Load(); first != nil {
		return first
	}
	from := uintptr(window) * uintptr(a.rows) * a.stride
	memory, _, err := Map(a.m, from, min(from+uintptr(a.rows)*a.stride, Bytes(a.m)))
	if err != nil {
		panic(err)
	}
	a.windows[window].Store(&memory[0])
	return &memory[0]
}

// Len returns the number of rows.
func (a *Array[V]) Len() uint32 { return a.length }

// At returns a row in the memory of the map. It panics if there is no such row.
func (a *Array[V]) At(i uint32) *V { return a.at(i) }

// Load reads a row. It panics if there is no such row.
func (a *Array[V]) Load(i uint32) V { return *a.at(i) }

// Store writes a row, not atomically.
func (a *Array[V]) Store(i uint32, v V) error {
	if i >= a.length {
		return fmt.Errorf("row %d of %d", i, a.length)
	}
	*a.at(i) = v
	return nil
}

// All returns the rows that are not zero. It reads through temporary mappings.
func (a *Array[V]) All() (map[uint32]V, error) {
	all := map[uint32]V{}
	var zero V
	for first, rows := uint32(0), uint32(max(1, ReadWindow/a.stride)); first < a.length; first += rows {
		rows = min(rows, a.length-first)
		from := uintptr(first) * a.stride
		memory, unmap, err := Map(a.m, from, from+uintptr(rows)*a.stride)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			if v := *(*V)(unsafe.Pointer(&memory[uintptr(i)*a.stride])); v != zero {
				all[first+i] = v
			}
		}
		if err := unmap(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Stride returns the distance between an array's rows in the kernel.
func Stride(m *ebpf.Map) uintptr { return uintptr(m.ValueSize()+7) &^ 7 }

// Bytes returns the size of all rows.
func Bytes(m *ebpf.Map) uintptr { return Stride(m) * uintptr(m.MaxEntries()) }

// Map maps the bytes [from, to) of an array, which need not be page-aligned.
func Map(m *ebpf.Map, from, to uintptr) (memory []byte, unmap func() error, err error) {
	page := uintptr(unix.Getpagesize())
	start, end := from&^(page-1), (to+page-1)&^(page-1)
	pages, err := unix.Mmap(m.FD(), int64(start), int(end-start), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map the memory of %s: %w", m, err)
	}
	return pages[from-start : to-start], func() error { return unix.Munmap(pages) }, nil
}
