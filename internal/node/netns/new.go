// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// New creates a namespace without a name. It ends, with its devices, when it is closed and nothing else uses it. New
// needs CAP_SYS_ADMIN.
func New() (*Namespace, error) {
	type result struct {
		namespace *Namespace
		err       error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocks it: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{err: fmt.Errorf("create a network namespace (needs CAP_SYS_ADMIN): %w", err)}
			return
		}
		n, err := Current()
		done <- result{n, err}
	}()
	r := <-done
	return r.namespace, r.err
}

// FD is the file descriptor of the open namespace.
func (n *Namespace) FD() int { return int(n.file.Fd()) }
