// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// A Link is a pinned link of a component at a device or a pod, or a filter at tc in place of a link.
type Link struct {
	// Owner is the number in the name of the pin: the index of the device, or the id of the pod's cgroup.
	Owner   uint64
	Hook    string
	Program ebpf.ProgramID
	ID      link.ID
	// Detached: what it was attached to is gone, or something detached the program.
	Detached bool

	path   string
	info   *link.Info
	filter *netlink.BpfFilter // nil: a link
}

// ownedLinkPath returns the pin of a link of a component.
func ownedLinkPath(bpffs, component string, owner uint64, hook string) string {
	return filepath.Join(bpffs, "links", fmt.Sprintf("%s-%d-%s", component, owner, hook))
}

// parseLink reads the name of a pin. It is the inverse of ownedLinkPath.
func parseLink(path string) (l Link, ok bool) {
	parts := strings.Split(filepath.Base(path), "-")
	if len(parts) != 3 {
		return l, false
	}
	owner, err := strconv.ParseUint(parts[1], 10, 64)
	return Link{Owner: owner, Hook: parts[2], path: path}, err == nil
}

// PinnedLinks lists the pinned links of a component at devices and pods.
func PinnedLinks(bpffs, component string) (all []Link, err error) {
	paths, err := filepath.Glob(filepath.Join(bpffs, "links", component+"-*"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		l, ok := parseLink(path)
		if !ok {
			continue
		}
		l.info, err = readLink(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		l.Program, l.ID, l.Detached = l.info.Program, l.info.ID, !isAttached(l.info)
		all = append(all, l)
	}
	return all, nil
}

// readLink returns what the kernel says of a pinned link.
func readLink(path string) (*link.Info, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil, fmt.Errorf("open pinned link %s: %w", filepath.Base(path), err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return nil, fmt.Errorf("read pinned link %s: %w", filepath.Base(path), err)
	}
	return info, nil
}

// Replace replaces the program.
func (l *Link) Replace(program *ebpf.Program) error {
	pinned, err := link.LoadPinnedLink(l.path, nil)
	if err != nil {
		return err
	}
	defer pinned.Close()
	return pinned.Update(program)
}

// Remove detaches the program and removes the pin.
func (l *Link) Remove() error {
	if l.filter != nil {
		return removeFilter(l.filter)
	}
	pinned, err := link.LoadPinnedLink(l.path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !isAttached(l.info) { // the kernel refuses to detach some again
		return errors.Join(pinned.Unpin(), pinned.Close())
	}
	return takeDown(pinned)
}

// takeDown detaches a pinned link and removes its pin. Removing only the pin would leave the program
// running for a while: the kernel releases the link after a grace period.
func takeDown(l link.Link) error {
	return errors.Join(l.Detach(), l.Unpin(), l.Close())
}

// AttachLink attaches a program of a component, or replaces the one in the pinned link.
func (d *Datapath) AttachLink(component string, owner uint64, hook string, program *ebpf.Program, to Target, at ebpf.AttachType) error {
	return d.attachPinned(ownedLinkPath(d.options.BPFFS, component, owner, hook), program, to, at)
}

// attachPinned replaces the program in a pinned link. It makes a new link if there is none, if that is attached to
// something else, or if it rejects the program.
func (d *Datapath) attachPinned(path string, program *ebpf.Program, to Target, at ebpf.AttachType) error {
	old, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) && d.isPinLost(path) {
		if err := d.RestorePins(); err != nil {
			return err
		}
		old, err = link.LoadPinnedLink(path, nil)
	}
	if err == nil {
		info, err := old.Info()
		if err == nil && to.has(info) && old.Update(program) == nil {
			return old.Close()
		}
		if err := takeDown(old); err != nil {
			return err
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := to.attach(program, at)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.Pin(path); err != nil {
		return err
	}
	return d.Hold(path)
}

// The agent holds the pinned links open, so that programs stay attached if something removes the pins while
// it runs: a link without pin and without descriptor detaches its program. Links are known by their paths.

// Hold keeps a pinned link open until the agent ends.
func (d *Datapath) Hold(path string) error {
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
		if err := d.Hold(path); err != nil && !errors.Is(err, os.ErrNotExist) { // unpinned meanwhile
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
		if !isAttached(info) {
			continue
		}
		if err := pinLinkAgain(info.ID, path); err != nil {
			return repaired, fmt.Errorf("pin link %s: %w", filepath.Base(path), err)
		}
		repaired = append(repaired, "pin of link "+filepath.Base(path))
	}
	return repaired, nil
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
		if err := repin(d.Program(h.Program), path); err != nil {
			return repaired, fmt.Errorf("pin program %s: %w", h.Name, err)
		}
		repaired = append(repaired, "pin of program "+h.Name)
	}
	return repaired, nil
}
