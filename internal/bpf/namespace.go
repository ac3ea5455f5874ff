// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"beeline.io/beeline/internal/node/netns"
)

// namespaceMark is the prefix of the name of a directory in the bpffs directory. The rest is the cookie of
// the network namespace whose devices the agent serves; no other namespace gets the same cookie until the
// next boot.
const namespaceMark = "netns_"

func namespacePath(bpffs string) (string, error) {
	cookie, err := netns.CurrentCookie()
	return filepath.Join(bpffs, fmt.Sprintf("%s%d", namespaceMark, cookie)), err
}

// markNamespace records that an agent of the current network namespace uses the directory.
func markNamespace(bpffs string) error {
	own, err := namespacePath(bpffs)
	if err != nil {
		return err
	}
	if err := os.Mkdir(own, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("--pins: %w", err)
	}
	return unmarkNamespaces(bpffs, own)
}

// unmarkNamespaces removes all marks but one.
func unmarkNamespaces(bpffs, keep string) error {
	marks, err := filepath.Glob(filepath.Join(bpffs, namespaceMark+"*"))
	for _, mark := range marks {
		if mark != keep {
			err = errors.Join(err, os.Remove(mark))
		}
	}
	return err
}

// OtherNamespace reports whether an agent of another network namespace than the current one made the pins
// in a bpffs directory. Its devices are not visible from here.
func OtherNamespace(bpffs string) (bool, error) {
	own, err := namespacePath(bpffs)
	if err != nil {
		return false, err
	}
	marks, err := filepath.Glob(filepath.Join(bpffs, namespaceMark+"*"))
	if err != nil || len(marks) == 0 {
		return false, err
	}
	_, err = os.Stat(own)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// refuseOtherNamespace refuses a directory that serves another network namespace: its programs would stay
// at devices that no agent maintains.
func refuseOtherNamespace(bpffs string) error {
	other, err := OtherNamespace(bpffs)
	if err != nil || !other || !Attached(bpffs) {
		return err
	}
	return fmt.Errorf("--pins %s: the datapath there serves another network namespace: start this agent in that one (in a pod: hostNetwork: true), "+
		"give it another --pins, or run `beeline cleanup --pins %s` first", bpffs, bpffs)
}
