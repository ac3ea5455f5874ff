// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// l3Families are addresses that a test run takes for ethertypes: it takes the first 14 octets for an Ethernet header
// even if the packet has none, and the last two of them are in the source address.
var l3Families = []family{
	newFamily("IPv4", "8.0.200.1", "8.0.%d.11", "192.168.100.1", "10.96.0.10", "10.96.0.99"),
	newFamily("IPv6", "fd00:200:86dd::1", "fd00:10:86dd:%d::11", "fd00:100::1", "fd00:96::10", "fd00:96::99"),
}

// Programs for devices without MAC addresses and the model agree as in TestModel, except for what a test run cannot
// do (runL3). A packet that is sent has an Ethernet header, with which the kernel's helper takes it.
func TestModelWithoutMAC(t *testing.T) {
	w := newL3World(t)
	seed := seedFlag.Of(t)
	var total [model.Reasons]uint64
	for round := range uint64(10) {
		counts, err := (&duel{t: t, w: w, at: atIngress}).attempt(seed, round)
		if err != nil {
			t.Fatalf("-seed=%d, round %d: %v", seed, round, err)
		}
		for i, n := range counts {
			total[i] += n
		}
	}
	t.Logf("packets by reason: %v", total)
	for _, reason := range []model.Reason{model.New, model.Established, model.Reply, model.Rejected, model.Echoed, model.TTLExceeded,
		model.DropPolicy, model.DropSource, model.DropNoRoute, model.NotService, model.Malformed} {
		if total[reason] == 0 {
			t.Errorf("no packet had reason %d: the test is too narrow", reason)
		}
	}
}

// newL3World is a world of l3Families, whose packets arrive at a device without MAC addresses.
func newL3World(t *testing.T) *world {
	t.Helper()
	oldFamilies, oldPods := families, podNetworks
	t.Cleanup(func() { families, podNetworks = oldFamilies, oldPods })
	families, podNetworks = slices.Clone(l3Families), prefixes("8.0.0.0/20", "fd00:10::/32")
	for i := range families { // a packet that is too big is fragmented in steps that a test run cannot do
		families[i].narrow, families[i].narrowClient = families[i].remote.Next(), families[i].client.Next()
	}
	w := newWorld(t, limits{})
	for _, r := range routes {
		if to := l3Route(r.to); to != "" {
			w.addRoute(t, to, r.via, r.device, r.mac, r.known, r.mtu)
		}
	}
	spec, err := bpf.LoadEdgeL3()
	must(t, err)
	w.limits.set(t, spec)
	must(t, spec.Variables[bpf.EdgeTCVarPseudoHeaderV6].Set(bpf.PseudoHeaderV6()))
	shared := maps.Clone(w.programs.tc.Maps)
	maps.DeleteFunc(shared, func(name string, _ *ebpf.Map) bool { return spec.Maps[name] == nil || name[0] == '.' })
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	must(t, err)
	t.Cleanup(loaded.Close)
	w.l3, w.ingress, w.egress = true, loaded.Programs[bpf.EdgeL3ProgBeelineL3Ingress], loaded.Programs[bpf.EdgeL3ProgBeelineL3Egress]
	return w
}

// l3Route is the destination of a route in l3Families; "" if it is none of clients or pods, or a narrow one.
func l3Route(to string) string {
	for _, old := range [][2]string{{"192.168.200.", "8.0.200."}, {"10.10.", "8.0."}, {"fd00:200::", "fd00:200:86dd::"}, {"fd00:10:", "fd00:10:86dd:"}} {
		if rest, ok := strings.CutPrefix(to, old[0]); ok && !strings.Contains(rest, "6.0/") && !strings.HasPrefix(rest, "6:") {
			return old[1] + rest
		}
	}
	return ""
}

const ethernetHeader = 14

// isL3Packet reports whether a test run takes the packet in a frame for IP, with room for the header that it expects
// after the first 14 octets (Linux 6.18), and the model takes the frame for one that eth0 receives.
func isL3Packet(frame []byte) bool {
	const longestHeader = 40
	return len(frame) >= 2*ethernetHeader+longestHeader && bytes.Equal(frame[:6], eth0MAC[:]) && bytes.Equal(frame[12:14], frame[26:28])
}

// runL3 is run for a packet without an Ethernet header; the frame's is removed, and the result has one again. The test
// run's idea of where the IP header begins is wrong, so nothing may be inserted after it.
func (w *world) runL3(t testing.TB, at hook, frame []byte) model.Result {
	t.Helper()
	program := w.ingress
	if at == atEgress {
		program = w.egress
	}
	options := ebpf.RunOptions{Data: frame[ethernetHeader:], DataOut: output}
	options.Context = [48]uint32{10: w.index["eth0"]} // struct __sk_buff: ifindex
	verdict, err := program.Run(&options)
	if err != nil {
		t.Fatalf("%s: running the program on %d bytes: %v", at, len(frame)-ethernetHeader, err)
	}
	action, ok := actions[at][verdict]
	if !ok {
		t.Fatalf("%s: the program returned %#x", at, verdict)
	}
	switch action {
	case model.ActionDrop:
		return model.Result{Action: action}
	case model.ActionPass:
		return model.Result{Action: action, Frame: slices.Concat(frame[:ethernetHeader], options.DataOut)}
	}
	if len(options.DataOut) < ethernetHeader || !w.nextHop(options.DataOut) && !isZero(options.DataOut[:ethernetHeader]) {
		t.Fatalf("%s: the packet was sent without an Ethernet header: %x", at, options.DataOut)
	}
	return model.Result{Action: action, Frame: slices.Concat(frame[:ethernetHeader], options.DataOut[ethernetHeader:])}
}
