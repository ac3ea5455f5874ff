// SPDX-License-Identifier: Apache-2.0

// Package flowtable has established flows leave the IP stack by a flowtable of the kernel (nf_flow_table): in
// software from the ingress hook of a device to another device, in hardware where a driver can.
//
// Beeline's tables of nftables have the flowtable and the rules that add flows to it: established flows of TCP and
// UDP between the devices, after some packets, when packets of both directions had a valid next hop. The stack
// resolves it.
//
// The kernel follows routes, but neither a MAC address nor a port of a bridge once it has taken a flow. Run follows
// devices, neighbours, bridges, routes and rules, and replaces the table when a flow could be affected: all its flows
// return to the stack, which still tracks them (nft_flow_offload has set conntrack to accept any sequence number),
// and are taken again by their next packets. No connection is lost. Conntrack entries are not deleted: without them a
// connection with NAT ends. Changes of other rules are the caller's, who calls Flush.
package flowtable

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/util/wakeup"
)

// A Flowtable is Beeline's flowtable of a network namespace. All methods may be called from any goroutine.
type Flowtable struct {
	namespace *netns.Namespace // nil: that of the process
	log       *slog.Logger
	connect   func() (*nftables.Conn, error)

	mu      sync.Mutex
	config  *Config // nil before Apply and after Close
	network *network
	devices map[int]bool // by which packets enter and leave the stack
	report  Report
	status  counts
	due     string        // why the table has to be replaced; empty: it has not
	wake    wakeup.Signal // for Run: due has changed
}

// counts are counters of Status.
type counts struct {
	replaced map[string]uint64
	last     time.Time
}

// New returns the flowtable of a network namespace, or of the process's if it is nil. It does nothing before Apply.
func New(namespace *netns.Namespace, log *slog.Logger) *Flowtable {
	return &Flowtable{
		namespace: namespace, log: log, wake: wakeup.NewSignal(),
		connect: newConn,
		status:  counts{replaced: map[string]uint64{}},
	}
}

// do runs a function in the namespace.
func (f *Flowtable) do(function func() error) error {
	if f.namespace == nil {
		return function()
	}
	return f.namespace.Do(function)
}

// Apply takes flows as a configuration says, instead of an earlier one. All flows return to the stack first. If it
// fails, nothing has changed. The error is ErrUnavailable if there are no flowtables; the report says which devices
// are refused, all of them perhaps.
func (f *Flowtable) Apply(c Config) (Report, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.install(&c); err != nil {
		return Report{}, err
	}
	f.due = ""
	f.wake.Send()
	return f.report, nil
}

// Flush has all flows return to the stack. Those that still may are taken again by their next packets. Call it when
// other rules have changed. The reason is for Status.
func (f *Flowtable) Flush(reason string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.replace(reason)
}

func (f *Flowtable) replace(reason string) error {
	if f.config == nil {
		return nil
	}
	if err := f.install(f.config); err != nil {
		return err
	}
	f.status.replaced[reason]++
	f.status.last = time.Now()
	f.due = ""
	return nil
}

// install creates the tables of a configuration in one transaction, instead of earlier ones.
func (f *Flowtable) install(c *Config) error {
	var n *network
	err := f.do(func() (err error) {
		n, err = readNetwork()
		return err
	})
	if err != nil {
		return err
	}
	report, err := f.choose(n, *c, f.report)
	if err != nil {
		return err
	}
	report.AccountingEnabled = f.report.AccountingEnabled || !f.accounting()
	devices := n.above(report.SoftwareDevices)
	if err := f.write(n, c, report, devices); err != nil {
		f.report.SoftwareDevices = nil // to try the devices again
		return fmt.Errorf("create table inet %s of nftables: %w", TableName, err)
	}
	f.config, f.network, f.report, f.devices = c, n, report, devices
	return nil
}

func (f *Flowtable) write(n *network, c *Config, report Report, devices map[int]bool) error {
	rulesetOf := func(names []string, above map[int]bool, hardware bool) *ruleset {
		return &ruleset{config: *c, devices: names, indexes: slices.Sorted(maps.Keys(above)), hops: n.hops(above), hardware: hardware}
	}
	return f.batch(func(conn *nftables.Conn) error {
		if len(report.HardwareDevices) == 0 {
			remove(conn, tableOf(true))
		} else if err := rulesetOf(report.HardwareDevices, n.above(report.HardwareDevices), true).replace(conn); err != nil {
			return err
		}
		return rulesetOf(report.SoftwareDevices, devices, false).replace(conn)
	})
}

// with runs a function with a connection to nf_tables of the namespace.
func (f *Flowtable) with(function func(*nftables.Conn) error) error {
	return f.do(func() error {
		c, err := f.connect()
		if err != nil {
			return err
		}
		return function(c)
	})
}

// batch commits what a function adds.
func (f *Flowtable) batch(add func(*nftables.Conn) error) error {
	return f.with(func(c *nftables.Conn) error {
		if err := add(c); err != nil {
			return err
		}
		return c.Flush()
	})
}

// Close removes the tables: all flows return to the stack.
func (f *Flowtable) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config, f.due = nil, ""
	return f.do(func() error { return removeTables(f.connect, isOwn) })
}

// Remove removes Beeline's tables from the network namespace of the calling thread, also those of an earlier process.
// Other tables stay. Without nf_tables there is nothing to remove.
func Remove() error {
	return removeTables(newConn, isOwn)
}

// RemoveFormer removes the tables of versions that had other names for them, as Remove does.
func RemoveFormer() error { return removeTables(newConn, isFormer) }

func newConn() (*nftables.Conn, error) { return nftables.New() }

func removeTables(connect func() (*nftables.Conn, error), chosen func(*nftables.Table) bool) error {
	c, err := connect()
	if err != nil {
		return err
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
			return nil
		}
		return fmt.Errorf("list the tables of nftables: %w", err)
	}
	for _, t := range tables {
		if chosen(t) {
			c.DelTable(t)
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete table inet %s of nftables: %w", TableName, err)
	}
	return nil
}

// accounting reports whether conntrack counts the packets of new flows.
func (f *Flowtable) accounting() (on bool) {
	_ = f.do(func() error {
		text, err := os.ReadFile(filepath.Join(netdev.SysctlRoot, "netfilter/nf_conntrack_acct"))
		on = err == nil && strings.TrimSpace(string(text)) != "0" // it does not exist before conntrack begins with the first rule
		return nil
	})
	return on
}
