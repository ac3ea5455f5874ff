// SPDX-License-Identifier: Apache-2.0

// Package node reads the node's state that shortcuts have to ask for, because they skip the part of the stack that
// acts on it. Each subject has a file. A reader returns a plain value of the caller's network namespace, a watcher
// sends to a wakeup.Signal at its start and when the value may have changed.
package node
