// SPDX-License-Identifier: Apache-2.0

package datapath

import "fmt"

// Limits are the numbers of entries that the tables can hold. Zero takes the
// default. The comment is what one entry costs in kernel memory; tables marked
// "on use" cost that only for entries that exist.
type Limits struct {
	Frontends    uint32 // addresses and ports that clients ask for: 72 bytes, and about 100 on use
	Backends     uint32 // distinct endpoints: 32 bytes
	Slots        uint32 // members of all backend sets together, by weight: 8 bytes
	Services     uint32 // service ports: about 450 bytes on use
	SourceRanges uint32 // loadBalancerSourceRanges of all services: about 80 bytes on use
	Affinity     uint32 // clients remembered by session affinity: about 100 bytes
}

// DefaultLimits hold a large cluster: 25 MiB of kernel memory and what is used.
var DefaultLimits = Limits{
	Frontends:    65536,
	Backends:     262144,
	Slots:        524288,
	Services:     65536,
	SourceRanges: 65536,
	Affinity:     65536,
}

// What nobody sets. An entry costs 16 bytes, and about 80 on use.
const (
	networkLimit      = 1024
	reservedPortLimit = 32768 // all NodePorts, of each protocol and family
	optedOutLimit     = 4096
	doomedLimit       = 8192
)

// WithDefaults replaces zeros.
func (l Limits) WithDefaults() Limits {
	for _, f := range []struct{ value, def *uint32 }{
		{&l.Frontends, &DefaultLimits.Frontends},
		{&l.Backends, &DefaultLimits.Backends},
		{&l.Slots, &DefaultLimits.Slots},
		{&l.Services, &DefaultLimits.Services},
		{&l.SourceRanges, &DefaultLimits.SourceRanges},
		{&l.Affinity, &DefaultLimits.Affinity},
	} {
		if *f.value == 0 {
			*f.value = *f.def
		}
	}
	return l
}

// entries is what each table is created with. Rows are more than frontends,
// since an update fills a new row before it gives up the old one. Row and
// backend 0 are never used.
func (l Limits) entries() map[string]uint32 {
	return map[string]uint32{
		SockMapFrontends:    l.Frontends,
		SockMapFrontendRows: l.Frontends + l.Frontends/8 + 64,
		SockMapSlots:        l.Slots,
		SockMapBackends:     l.Backends + 1,
		SockMapServices:     l.Services,
		SockMapSourceRanges: l.SourceRanges,
		SockMapNetworks:     networkLimit,
		SockMapAffinity:     l.Affinity,

		SockMapReservedPorts: reservedPortLimit,
		SockMapOptedOut:      optedOutLimit,
		SockMapDoomed:        doomedLimit,
	}
}

// limitFlags names the flag that makes a table larger.
var limitFlags = map[string]string{
	SockMapFrontends:    "max-frontends",
	SockMapFrontendRows: "max-frontends",
	SockMapSlots:        "max-slots",
	SockMapBackends:     "max-backends",
	SockMapServices:     "max-services",
	SockMapSourceRanges: "max-source-ranges",
	SockMapAffinity:     "max-affinity",
}

// FullError says which table has no room, and the flag to raise.
type FullError struct {
	Table string
	Limit uint32
}

func (e *FullError) Error() string {
	s := fmt.Sprintf("table %s is full at %d entries", e.Table, e.Limit)
	if flag := limitFlags[e.Table]; flag != "" {
		s += fmt.Sprintf(": raise --%s and restart the agent", flag)
	}
	return s
}

// NewFullError is for a table that ran out of room before the kernel said so.
func NewFullError(table string, limit uint32) *FullError { return &FullError{table, limit} }

// Check refuses sizes that the kernel would refuse, or that nobody means.
func (l Limits) Check() error {
	const most = 1 << 26 // entries; the largest table is then 4 GiB
	for flag, n := range map[string]uint32{
		"max-frontends": l.Frontends, "max-backends": l.Backends, "max-slots": l.Slots,
		"max-services": l.Services, "max-source-ranges": l.SourceRanges, "max-affinity": l.Affinity,
	} {
		if n == 0 || n > most {
			return fmt.Errorf("--%s %d: between 1 and %d", flag, n, most)
		}
	}
	return nil
}
