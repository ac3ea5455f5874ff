// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// beeline is the program whose agents the tests run.
var beeline string

func TestMain(m *testing.M) {
	lab.Main()
	if os.Args[0] == partOwner {
		if err := ownAndWait(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(node.Run(m, &beeline))
}

// patience bounds all waiting. No result depends on it.
const patience = time.Minute

// pollInterval is the time between polls.
const pollInterval = 20 * time.Millisecond

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until ok returns nil.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(pollInterval) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain for this: %s: %v", patience, what, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
