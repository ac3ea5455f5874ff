// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"fmt"
	"sync"
	"time"
)

// A process can have what the kernel reads of it wait for a file system that does not answer: its memory, and the lock
// of its mappings. So it is read by a goroutine of its own, which may hang with its thread.
const (
	maxPatience = time.Second
	maxHanging  = 256
)

// hanging are processes that are still being read.
var hanging = struct {
	sync.Mutex
	pids map[int]bool
}{pids: map[int]bool{}}

// within returns what read returns, or an error if it takes longer than maxPatience, and as long as an earlier one of
// the same process hangs. drop gets a result that comes later.
func within[T any](pid int, read func() T, drop func(T)) (result T, err error) {
	hanging.Lock()
	known, n := hanging.pids[pid], len(hanging.pids)
	hanging.Unlock()
	if known {
		return result, fmt.Errorf("reading process %d hangs", pid)
	}
	if n >= maxHanging {
		return result, fmt.Errorf("process %d is not read, because reading %d others hangs", pid, n)
	}
	done := make(chan T, 1)
	go func() {
		r := read()
		hanging.Lock()
		defer hanging.Unlock()
		if hanging.pids[pid] {
			delete(hanging.pids, pid)
			drop(r)
			return
		}
		done <- r
	}()
	timer := time.NewTimer(maxPatience)
	defer timer.Stop()
	select {
	case r := <-done:
		return r, nil
	case <-timer.C:
	}
	hanging.Lock()
	defer hanging.Unlock()
	select {
	case r := <-done: // at the last moment
		return r, nil
	default:
		hanging.pids[pid] = true
		return result, fmt.Errorf("reading process %d took longer than %v", pid, maxPatience)
	}
}
