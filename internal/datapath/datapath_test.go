// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// options are those of an agent on a node of a lab of its own.
func options(t *testing.T) Options {
	t.Helper()
	node := lab.New(t).Nodes()[0]
	return Options{BPFFS: filepath.Join(node.BPFFS, "beeline"), CgroupRoot: node.CgroupRoot, BindProtection: true}
}

func mustOpen(t *testing.T, o Options) *Datapath {
	t.Helper()
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func frontendKey(n byte) FrontendKey {
	return FrontendKey{Address: AddressFrom(netip.AddrFrom4([4]byte{10, 96, 0, n})), Port: NetworkOrder(80), Protocol: 6}
}

// TestTablesKeepWhatIsStored, and give it back after the agent was away.
func TestTablesKeepWhatIsStored(t *testing.T) {
	o := options(t)
	d := mustOpen(t, o)
	row := Frontend{Key: frontendKey(1), Service: 7, AffinitySeconds: 60, Decisions: [3]Decision{{First: 1, Count: 2}, {First: uint32(Drop)}}}
	backend := Backend{Address: AddressFrom(netip.MustParseAddr("fd00::1")), Port: NetworkOrder(8080), Protocol: 6, Local: 1}
	source := SourceRangeKey{Prefixlen: 32 + PrefixLen(netip.MustParsePrefix("192.0.2.0/24")), SourceSet: 3, Address: AddressFrom(netip.MustParseAddr("192.0.2.0"))}
	network := NetworkKey{Prefixlen: PrefixLen(netip.MustParsePrefix("fd00:96::/112")), Address: AddressFrom(netip.MustParseAddr("fd00:96::"))}
	name := ServiceName{Protocol: 6}
	copy(name.Name[:], "web")
	for _, err := range []error{
		d.Tables.FrontendRows.Store(5, row), d.Tables.Frontends.Put(frontendKey(1), 5),
		d.Tables.Slots.Store(1, 9), d.Tables.Backends.Store(9, backend),
		d.Tables.SourceRanges.Put(source, 1), d.Tables.Networks.Put(network, NetworkService),
		d.Tables.Services.Put(7, name), d.Tables.Affinity.Put(AffinityKey{Service: 7}, AffinityEntry{Backend: 9}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d.Close()

	tables := mustOpen(t, o).Tables
	check := func(what string, got any, err error, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", what, err, diff)
		}
	}
	index, err := tables.Frontends.All()
	check("frontends", index, err, map[FrontendKey]uint32{frontendKey(1): 5})
	rows, err := tables.FrontendRows.All()
	check("rows", rows, err, map[uint32]Frontend{5: row})
	slots, err := tables.Slots.All()
	check("slots", slots, err, map[uint32]uint32{1: 9})
	backends, err := tables.Backends.All()
	check("backends", backends, err, map[uint32]Backend{9: backend})
	ranges, err := tables.SourceRanges.All()
	check("source ranges", ranges, err, map[SourceRangeKey]uint32{source: 1})
	networks, err := tables.Networks.All()
	check("networks", networks, err, map[NetworkKey]Network{network: NetworkService})
	services, err := tables.Services.All()
	check("services", services, err, map[uint32]ServiceName{7: name})
	affinity, err := tables.Affinity.All()
	check("affinity", affinity, err, map[AffinityKey]AffinityEntry{{Service: 7}: {Backend: 9}})
	check("prefix of a source range", source.Prefix().String(), nil, "192.0.2.0/24")
	check("prefix of a network", network.Prefix().String(), nil, "fd00:96::/112")
}

// TestAllReadsLargeTables: more entries than one batch holds.
func TestAllReadsLargeTables(t *testing.T) {
	tables := mustOpen(t, options(t)).Tables
	const n = 20000
	for i := range uint32(n) {
		if err := tables.Services.Put(i, ServiceName{}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := tables.Services.All()
	if len(all) != n || err != nil {
		t.Errorf("%d of %d entries, %v", len(all), n, err)
	}
}

func TestFullTableNamesItsFlag(t *testing.T) {
	o := options(t)
	o.Limits = Limits{Frontends: 2, SourceRanges: 2}
	tables := mustOpen(t, o).Tables
	var err error
	for n := range byte(3) {
		err = tables.Frontends.Put(frontendKey(n), 1)
	}
	var full *FullError
	if !errors.As(err, &full) || !strings.Contains(err.Error(), "--max-frontends") {
		t.Errorf("third frontend of two: %v", err)
	}
	for n := range uint32(3) {
		err = tables.SourceRanges.Put(SourceRangeKey{SourceSet: n, Prefixlen: 160}, 1)
	}
	if !errors.As(err, &full) || !strings.Contains(err.Error(), "--max-source-ranges") {
		t.Errorf("third source range of two: %v", err)
	}
}

// TestSecondAgentIsRefused with the pid of the first.
func TestSecondAgentIsRefused(t *testing.T) {
	o := options(t)
	d := mustOpen(t, o)
	var locked *LockedError
	if _, err := Open(o); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("second agent: %v", err)
	}
	if err := Cleanup(o.BPFFS); !errors.As(err, &locked) {
		t.Errorf("cleanup while an agent runs: %v", err)
	}
	d.Close()
	mustOpen(t, o)
}

// TestLimitsCanChange: a table is copied to its new size, and the attached
// programs are exchanged with it. What does not fit is refused by name.
func TestLimitsCanChange(t *testing.T) {
	o := options(t)
	o.Limits = Limits{Frontends: 10, Backends: 100, Slots: 50}
	d := mustOpen(t, o)
	for n := range byte(8) {
		if err := d.Tables.Frontends.Put(frontendKey(n), uint32(n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Tables.Backends.Store(60, Backend{Port: 1}); err != nil {
		t.Fatal(err)
	}
	if err := d.Attach(); err != nil {
		t.Fatal(err)
	}
	d.Close()
	for _, test := range []struct {
		limits Limits
		flag   string // of what does not fit; empty if all does
	}{
		{Limits{Frontends: 1000, Backends: 2000, Slots: 3000}, ""},
		{Limits{Frontends: 8, Backends: 60, Slots: 10}, ""},
		{Limits{Frontends: 7, Backends: 60, Slots: 10}, "--max-frontends"},
		{Limits{Frontends: 8, Backends: 59, Slots: 10}, "--max-backends"},
		{Limits{Frontends: 9, Backends: 61, Slots: 11}, ""},
	} {
		o.Limits = test.limits
		d, err := Open(o)
		if test.flag != "" {
			if err == nil || !strings.Contains(err.Error(), test.flag) {
				t.Errorf("%+v: %v", test.limits, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Attach(); err != nil {
			t.Fatal(err)
		}
		d.Close()
		tables, err := OpenTables(o.BPFFS)
		if err != nil {
			t.Fatal(err)
		}
		index, err := tables.Frontends.All()
		if len(index) != 8 || err != nil || tables.Frontends.Max() != test.limits.Frontends {
			t.Errorf("%+v: the pinned table has %d entries of %d, %v", test.limits, len(index), tables.Frontends.Max(), err)
		}
		if tables.Backends.Len() != test.limits.Backends+1 || tables.Backends.Load(60).Port != 1 {
			t.Errorf("%+v: the pinned backends are %d, the last is %v", test.limits, tables.Backends.Len(), tables.Backends.Load(60))
		}
	}
}

// TestOtherLayoutIsRefused, saying what to do.
func TestOtherLayoutIsRefused(t *testing.T) {
	o := options(t)
	mustOpen(t, o).Close()
	path := TablePath(o.BPFFS, SockMapBackends)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 48, MaxEntries: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "beeline cleanup") {
		t.Errorf("error %v", err)
	}
	if err := Cleanup(o.BPFFS); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, o)
}

// TestProgramsAreReplacedInPlace: the links stay, their programs change. A link
// whose cgroup is gone, or another one, is made anew.
func TestProgramsAreReplacedInPlace(t *testing.T) {
	o := options(t)
	attach := func() []Attachment {
		t.Helper()
		d := mustOpen(t, o)
		defer d.Close()
		if err := d.Attach(); err != nil {
			t.Fatal(err)
		}
		all, err := Attachments(o.BPFFS)
		if err != nil || len(all) != d.Hooks() {
			t.Fatalf("%d attachments of %d, %v", len(all), d.Hooks(), err)
		}
		return all
	}
	first, second := attach(), attach()
	for i := range first {
		if first[i].LinkID != second[i].LinkID || first[i].ProgramID == second[i].ProgramID || second[i].Cgroup != o.CgroupRoot {
			t.Errorf("replaced: %+v by %+v", first[i], second[i])
		}
	}
	child := filepath.Join(o.CgroupRoot, "child")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	root := o.CgroupRoot
	o.CgroupRoot = child
	if moved := attach(); moved[0].Cgroup != child {
		t.Errorf("moved to %s: %+v", child, moved)
	}
	if err := os.Remove(child); err != nil {
		t.Fatal(err)
	}
	detached := false
	for deadline := time.Now().Add(10 * time.Second); !detached && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		all, err := Attachments(o.BPFFS) // the kernel detaches when it gets round to it
		if err != nil {
			t.Fatal(err)
		}
		detached = all[0].Detached
	}
	if !detached {
		t.Error("the links of a removed cgroup are not seen to be detached")
	}
	o.CgroupRoot = root
	if again := attach(); again[0].Detached || again[0].Cgroup != root {
		t.Errorf("attached again: %+v", again)
	}
	if err := Cleanup(o.BPFFS); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(o.BPFFS); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after cleanup: %v", err)
	}
}

// TestMendsWhatIsTakenAway: pins and links that somebody removes come back, with
// the tables that the programs use.
func TestMendsWhatIsTakenAway(t *testing.T) {
	o := options(t)
	d := mustOpen(t, o)
	if err := d.Attach(); err != nil {
		t.Fatal(err)
	}
	if err := d.Tables.Frontends.Put(frontendKey(1), 5); err != nil {
		t.Fatal(err)
	}
	if mended, err := d.Mend(); len(mended) != 0 || err != nil {
		t.Fatalf("nothing is missing: %v, %v", mended, err)
	}
	for _, path := range []string{TablePath(o.BPFFS, SockMapFrontends), linkPath(o.BPFFS, allHooks[2])} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if mended, err := d.Mend(); len(mended) != 2 || err != nil {
		t.Errorf("mended %v, %v", mended, err)
	}
	if all, err := Attachments(o.BPFFS); len(all) != d.Hooks() || err != nil {
		t.Errorf("attached: %+v, %v", all, err)
	}
	for _, lost := range []string{filepath.Join(o.BPFFS, "links"), o.BPFFS} {
		if err := os.RemoveAll(lost); err != nil {
			t.Fatal(err)
		}
		if mended, err := d.Mend(); len(mended) == 0 || err != nil {
			t.Errorf("%s was removed: mended %v, %v", lost, mended, err)
		}
		if all, err := Attachments(o.BPFFS); len(all) != d.Hooks() || err != nil || all[0].Detached {
			t.Errorf("%s was removed, and this is attached: %+v, %v", lost, all, err)
		}
		if running, _ := AgentRunning(o.BPFFS); !running {
			t.Errorf("%s was removed, and nobody holds the lock", lost)
		}
	}
	d.Close()

	// Nobody was there to mend it, but programs are attached.
	for _, name := range []string{SockMapFrontends, SockMapConnected, SockMapAffinity} {
		if err := os.Remove(TablePath(o.BPFFS, name)); err != nil {
			t.Fatal(err)
		}
	}
	index, err := mustOpen(t, o).Tables.Frontends.All()
	if len(index) != 1 || err != nil {
		t.Errorf("the tables of the attached programs were not found again: %v, %v", index, err)
	}
}

// TestOtherBeelineIsRefused: two of them at one cgroup would both rewrite.
func TestOtherBeelineIsRefused(t *testing.T) {
	o := options(t)
	first := mustOpen(t, o)
	if err := first.Attach(); err != nil {
		t.Fatal(err)
	}
	other := o
	other.BPFFS += "_other"
	second := mustOpen(t, other)
	if err := second.Attach(); err == nil || !strings.Contains(err.Error(), "another Beeline") {
		t.Errorf("second: %v", err)
	}
	first.Close()
	if err := Cleanup(o.BPFFS); err != nil {
		t.Fatal(err)
	}
	if err := second.Attach(); err != nil {
		t.Errorf("after the first is gone: %v", err)
	}
}

// TestCleanupTouchesNothingElse: what is not Beeline's by name stays.
func TestCleanupTouchesNothingElse(t *testing.T) {
	folder := t.TempDir()
	mine := filepath.Join(folder, "links")
	if err := os.Mkdir(mine, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Cleanup(folder); err == nil || !strings.Contains(err.Error(), "not on a BPF file system") {
		t.Errorf("an ordinary folder: %v", err)
	}
	o := options(t)
	d := mustOpen(t, o)
	foreign := filepath.Join(o.BPFFS, "links", "foreign")
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(foreign); err != nil {
		t.Fatal(err)
	}
	d.Close()
	if err := Cleanup(o.BPFFS); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{mine, foreign} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone: %v", path, err)
		}
	}
	if _, err := os.Stat(TablePath(o.BPFFS, SockMapSlots)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tables are still there: %v", err)
	}
}

// TestMountsOwnBPFFS: where there is no BPF file system the agent mounts one,
// and cleanup takes it away again.
func TestMountsOwnBPFFS(t *testing.T) {
	o := options(t)
	o.BPFFS = filepath.Join(t.TempDir(), "pins")
	mustOpen(t, o).Close()
	if on, err := isFS(o.BPFFS, unix.BPF_FS_MAGIC); !on || err != nil {
		t.Fatalf("not mounted: %v", err)
	}
	mustOpen(t, o).Close() // a second start does not mount again
	if err := Cleanup(o.BPFFS); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(o.BPFFS); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after cleanup: %v", err)
	}
	for path, reason := range map[string]string{"relative/path": "absolute", "/sys/fs/bpf/with.dot": "dots"} {
		if err := prepareBPFFS(path); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestCgroupRoot (K6): a cgroup v2 hierarchy beside v1 ones is mounted for the
// agent. Everything happens in a mount namespace of its own.
func TestCgroupRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	if _, err := CgroupRoot("/proc"); err == nil || !strings.Contains(err.Error(), "not a cgroup v2 directory") {
		t.Errorf("/proc: %v", err)
	}
	if _, err := CgroupRoot("/nowhere"); err == nil {
		t.Error("/nowhere was taken")
	}
	done := make(chan struct{})
	skip := ""
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			t.Error(err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); errors.Is(err, unix.EINVAL) {
			skip = "the root directory is no mount point (chroot), so mounts cannot be kept from others"
			return
		}
		for _, step := range []error{
			unix.Mount("none", "/sys/fs/cgroup", "tmpfs", 0, ""), // as systemd does for v1
			unix.Mount("none", "/run", "tmpfs", 0, ""),
		} {
			if step != nil {
				t.Error(step)
				return
			}
		}
		for range 2 {
			if root, err := CgroupRoot(""); root != OwnCgroup || err != nil {
				t.Errorf("beside v1: %s, %v", root, err)
			}
		}
		if _, err := os.Stat(filepath.Join(OwnCgroup, "cgroup.procs")); err != nil {
			t.Errorf("not the root of a cgroup v2 hierarchy: %v", err)
		}
		if err := unmountOwnCgroup(); err != nil {
			t.Error(err)
		}
		if err := unix.Mount("none", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
			t.Error(err)
		}
		if root, err := CgroupRoot(""); root != "/sys/fs/cgroup" || err != nil {
			t.Errorf("pure v2: %s, %v", root, err)
		}
	}()
	<-done
	if skip != "" {
		t.Skip(skip)
	}
}

// TestFeatures: this kernel has what the tests need, and the names of what is
// lacking come with their cost.
func TestFeatures(t *testing.T) {
	for _, f := range Features() {
		if f.Required && !f.Present {
			t.Errorf("missing: %+v", f)
		}
		if f.Present != (f.Cost == "") {
			t.Errorf("a feature costs something just if it is missing: %+v", f)
		}
	}
}
