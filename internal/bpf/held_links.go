// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf/link"
)

// The agent holds the pinned links open, so that programs stay attached if something removes the pins while
// it runs: a link without pin and without descriptor detaches its program. Links are known by their paths.

// readPinnedLinks calls each with the pinned links of a component whose paths it wants.
func readPinnedLinks(bpffs, component string, wanted func(path string) bool, each func(path string, info *link.Info)) error {
	paths, err := filepath.Glob(filepath.Join(bpffs, "links", component+"-*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		if !wanted(path) {
			continue
		}
		l, err := link.LoadPinnedLink(path, nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open pinned link %s: %w", filepath.Base(path), err)
		}
		info, err := l.Info()
		l.Close()
		if err != nil {
			return fmt.Errorf("read pinned link %s: %w", filepath.Base(path), err)
		}
		each(path, info)
	}
	return nil
}

// hold opens a pinned link.
func (d *Datapath) hold(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return fmt.Errorf("hold link %s: %w", filepath.Base(path), err)
	}
	d.holding.Lock()
	defer d.holding.Unlock()
	if old := d.held[path]; old != nil {
		old.Close()
	}
	if d.held == nil {
		d.held = map[string]link.Link{}
	}
	d.held[path] = l
	return nil
}

// holdLinks opens all pinned links, and closes those that have no pin any more.
func (d *Datapath) holdLinks() error {
	paths, err := filepath.Glob(filepath.Join(d.options.BPFFS, "links", "*"))
	if err != nil {
		return err
	}
	d.releaseLinks(func(path string) bool { return !slices.Contains(paths, path) })
	for _, path := range paths {
		if err := d.hold(path); err != nil && !errors.Is(err, os.ErrNotExist) { // unpinned meanwhile
			return err
		}
	}
	return nil
}

// releaseLinks closes the held links whose paths a function chooses.
func (d *Datapath) releaseLinks(chosen func(path string) bool) {
	d.holding.Lock()
	defer d.holding.Unlock()
	for path, l := range d.held {
		if chosen(path) {
			l.Close()
			delete(d.held, path)
		}
	}
}

// isPinLost reports whether a link has no pin because another program has removed the pin, or its directory.
func (d *Datapath) isPinLost(path string) bool {
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return true
	}
	d.holding.Lock()
	defer d.holding.Unlock()
	return d.held[path] != nil
}

// repinLinks pins held links that have lost their pins and are still attached. Links are detached before they are
// unpinned (takeDown), so that none comes back which the agent has removed.
func (d *Datapath) repinLinks() (repaired []string, err error) {
	d.holding.Lock()
	defer d.holding.Unlock()
	for path, l := range d.held {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		info, err := l.Info()
		if err != nil {
			return repaired, fmt.Errorf("read held link %s: %w", filepath.Base(path), err)
		}
		if !linkAttached(info) {
			continue
		}
		if err := pinLinkAgain(info.ID, path); err != nil {
			return repaired, fmt.Errorf("pin link %s: %w", filepath.Base(path), err)
		}
		repaired = append(repaired, "pin of link "+filepath.Base(path))
	}
	return repaired, nil
}

// linkAttached reports whether the cgroup, device or network namespace of a link exists, and the link is attached to
// it. Tracepoints always exist.
func linkAttached(info *link.Info) bool {
	if info.RawTracepoint() != nil {
		return true
	}
	if i := info.Cgroup(); i != nil {
		return i.CgroupId != 0
	}
	if i := info.NetNs(); i != nil {
		return i.NetnsInode != 0
	}
	if i := info.TCX(); i != nil {
		return i.Ifindex != 0
	}
	if i := info.XDP(); i != nil {
		return i.Ifindex != 0
	}
	if i := info.Netkit(); i != nil {
		return i.Ifindex != 0
	}
	return false
}

// pinLinkAgain pins a link by its ID: Link.Pin would try to move the previous pin, which has been removed.
func pinLinkAgain(id link.ID, path string) error {
	l, err := link.NewFromID(id)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Pin(path)
}

// repinPrograms restores pins of the programs of cgroup hooks.
func (d *Datapath) repinPrograms() (repaired []string, err error) {
	for _, h := range d.hooks() {
		path := programPath(d.options.BPFFS, h)
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := repin(d.program(h.Program), path); err != nil {
			return repaired, fmt.Errorf("pin program %s: %w", h.Name, err)
		}
		repaired = append(repaired, "pin of program "+h.Name)
	}
	return repaired, nil
}
